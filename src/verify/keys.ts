import { isDeepStrictEqual } from 'node:util';

export type Json = Readonly<Record<string, unknown>>;
/** Tells of a difference in a configuration. */
export type Fail = (message: string, got?: unknown, expected?: unknown, module?: string) => void;

/** Stands for a key that must be there and whose value is checked with the modules. */
export const ELSEWHERE = Symbol('checked with the modules');

/** A value that may also be absent. */
export class Maybe {
  constructor(readonly value: unknown) {}
}

/** Every key of `object` is one of `expected` and says the same; nothing is missing, and nothing is there unexplained. */
export function checkKeys(fail: Fail, where: string, object: Json, expected: Json): void {
  for (const [key, wanted] of Object.entries(expected)) {
    const there = Object.hasOwn(object, key);
    const value = wanted instanceof Maybe ? wanted.value : wanted;
    if (!there && !(wanted instanceof Maybe))
      fail(`${where} lacks ${key}`, 'nothing', value === ELSEWHERE ? 'a value' : value);
    else if (there && value !== ELSEWHERE && !isDeepStrictEqual(object[key], value))
      fail(`${where}.${key} is wrong`, object[key], value);
  }
  for (const key of Object.keys(object))
    if (!Object.hasOwn(expected, key))
      fail(`${where}.${key} is a key that the quantized checkpoint does not explain`, object[key]);
}

export function asObject(value: unknown): Json | undefined {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Json) : undefined;
}

export function strings(value: unknown): readonly string[] {
  return Array.isArray(value) ? value.filter((item) => typeof item === 'string') : [];
}
