import { isDeepStrictEqual } from 'node:util';
import type { Json } from '../model.js';
import { isObject } from './rehash.js';

/** A change of a JSON value: where, and a function that makes it in a copy. */
export interface JsonChange {
  readonly path: string;
  readonly what: string;
  /** Changes a copy of the whole value in place. */
  apply(root: unknown): void;
}

type Step = string | number;

/** What a string may become that means something else to a loader. */
const OTHER: Readonly<Record<string, string>> = {
  gptq: 'gptq_v2',
  gptq_v2: 'gptq',
  'pack-quantized': 'marlin-24',
  'float-quantized': 'int-quantized',
  'int-quantized': 'float-quantized',
  group: 'channel',
  channel: 'tensor',
  int: 'float',
  float: 'int',
  gemm: 'gemv',
  int32: 'int16',
  linear: 'yarn',
  default: 'linear',
  llama3: 'default',
  silu: 'gelu',
  bfloat16: 'float16',
  Linear: 'Embedding',
};

/** Every leaf changed, every key removed, renamed, and every object and list given one more. */
export function jsonChanges(root: unknown): JsonChange[] {
  const changes: JsonChange[] = [];
  const visit = (value: unknown, steps: readonly Step[]): void => {
    if (Array.isArray(value)) listChanges(value, steps, changes);
    else if (isObject(value)) objectChanges(value, steps, changes);
    else
      for (const other of others(value))
        changes.push(change(steps, `${show(value)} → ${show(other)}`, (parent, step) => (parent[step] = other)));
    if (Array.isArray(value) || isObject(value))
      for (const [step, child] of Object.entries(value))
        visit(child, [...steps, Array.isArray(value) ? Number(step) : step]);
  };
  visit(root, []);
  return changes;
}

function objectChanges(value: Json, steps: readonly Step[], changes: JsonChange[]): void {
  changes.push(within(steps, "key 'lpq_added': true added", (own) => ((own as Json).lpq_added = true)));
  for (const key of Object.keys(value)) {
    const at = [...steps, key];
    changes.push(change(at, 'removed', (parent, step) => delete (parent as Json)[step]));
    changes.push(
      change(at, `renamed ${key}_x`, (parent, step) => {
        (parent as Json)[`${step}_x`] = parent[step];
        delete (parent as Json)[step];
      }),
    );
    if (isObject(value[key]) || Array.isArray(value[key]))
      changes.push(change(at, 'replaced with null', (parent, step) => (parent[step] = null)));
  }
}

function listChanges(value: readonly unknown[], steps: readonly Step[], changes: JsonChange[]): void {
  const extra = typeof value[0] === 'number' ? 7 : typeof value[0] === 'object' ? value[0] : 're:.*self_attn.*';
  changes.push(within(steps, `${show(extra)} added`, (own) => (own as unknown[]).push(structuredClone(extra))));
  for (const [i, item] of value.entries()) {
    changes.push(within(steps, `element ${i}, ${show(item)}, removed`, (own) => (own as unknown[]).splice(i, 1)));
    const next = value[i + 1];
    if (i + 1 < value.length && !isDeepStrictEqual(item, next))
      changes.push(
        within(steps, `elements ${i} and ${i + 1} exchanged`, (own) => {
          const list = own as unknown[];
          [list[i], list[i + 1]] = [list[i + 1], list[i]];
        }),
      );
  }
}

function others(value: unknown): unknown[] {
  if (typeof value === 'number')
    return [Number.isInteger(value) ? value + 1 : value * 1.5, value === 0 ? 2 : -value, String(value), null];
  if (typeof value === 'boolean') return [!value, null];
  if (value === null) return [1, 'x', true];
  if (typeof value !== 'string') return [];
  // A hash is changed in one digit, other words into a neighbour or a longer one.
  if (/^[0-9a-f]{64}$/.test(value)) return [(value[0] === '0' ? '1' : '0') + value.slice(1)];
  const other = Object.hasOwn(OTHER, value) ? OTHER[value] : undefined;
  return [...(other === undefined ? [] : [other]), `${value}x`, ''].filter((each) => each !== value);
}

function change(
  steps: readonly Step[],
  what: string,
  apply: (parent: Record<Step, unknown>, step: Step) => void,
): JsonChange {
  const last = steps.at(-1) as Step;
  return { path: print(steps), what, apply: (root) => apply(at(root, steps.slice(0, -1)) as Json, last) };
}

function within(steps: readonly Step[], what: string, apply: (own: unknown) => void): JsonChange {
  return { path: print(steps), what, apply: (root) => apply(at(root, steps)) };
}

function at(root: unknown, steps: readonly Step[]): unknown {
  return steps.reduce((value, step) => (value as Record<Step, unknown>)[step], root);
}

function print(steps: readonly Step[]): string {
  return (
    steps
      .map((step) => (typeof step === 'number' ? `[${step}]` : `.${step}`))
      .join('')
      .replace(/^\./, '') || '(top)'
  );
}

export function show(value: unknown): string {
  const text = JSON.stringify(value) ?? 'nothing';
  return text.length > 60 ? `${text.slice(0, 57)}...` : text;
}
