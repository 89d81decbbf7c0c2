import { type NativeRuntime, type Tensor, uploadTyped } from '../../native/binding.js';
import { bitsOf } from './floats.js';
import { exactAttention, floatsOf, poisoned, UNIT } from './kv-attention.js';
import { Draw } from './kv-case.js';
import {
  bytesOf,
  expectedLatents,
  type LatentMaker,
  type LatentPage,
  type LatentPlaces,
  type LatentScheme,
  pageBytes,
  readLatent,
  readToken,
  UNTOUCHED,
} from './latent-case.js';
import { settle } from './native.js';
import type { Recorder } from './report.js';

export interface LatentContext {
  readonly runtime: NativeRuntime;
  readonly recorder: Recorder;
  readonly devices: readonly NativeRuntime[];
  readonly maker: LatentMaker;
  readonly seed: number;
}

/** One shape of the model's attention on one device. */
export interface Case extends LatentContext {
  readonly device: NativeRuntime;
  readonly scheme: LatentScheme;
  readonly page: LatentPage;
  /** A token's own dims; behind them a page holds zeros. */
  readonly own: { readonly latent: number; readonly rotary: number };
  readonly heads: number;
  readonly scale: number;
  readonly name: string;
}

/** Tokens: c [T, latent] and rotary [T, rotary] as a page holds them. */
export interface Tokens {
  readonly length: number;
  readonly c: Float32Array<ArrayBuffer>;
  readonly rotary: Float32Array<ArrayBuffer>;
}

/** Sizes of queries: scores that leave one token alone, and scores that leave many; what a device gives for them. */
const SIZES = [
  [2 ** -3, 'f16'],
  [2 ** -6, 'f32'],
] as const;

/** Rows from..to of numbers that f16 holds. */
export function halves(rt: NativeRuntime, x: Float32Array, width: number, from: number, to: number): Tensor {
  return uploadTyped(
    rt,
    'f16',
    [to - from, width],
    Uint16Array.from(x.subarray(from * width, to * width), bitsOf('f16')),
  );
}

/** Bytes of the pages, once everything enqueued has run. */
export async function stored({ device }: Case, pages: Tensor): Promise<Uint8Array> {
  await settle(device);
  return bytesOf(device, pages);
}

/** Bytes of a sequence's pages, read by the specification, against what they should hold; what no token has is untouched. */
export function checkBytes(
  one: Case,
  bytes: Uint8Array,
  table: readonly number[],
  tokens: Tokens,
  where: string,
): void {
  const { recorder, scheme, page, name } = one;
  const expected = expectedLatents(tokens.c, tokens.length, scheme, page.latent);
  const groups = page.latent / scheme.group;
  const untouched = new Uint8Array(pageBytes(scheme, page)).fill(UNTOUCHED);
  const idle = readToken(untouched, 0, 0, scheme, page);
  const compare = (part: string, t: number, got: ArrayLike<number>, want: ArrayLike<number>): void => {
    for (let i = 0; i < want.length; i++) {
      if (Object.is(got[i], want[i])) continue;
      const message = `${name}, ${where}: element ${i} of the ${part} of token ${t} is ${got[i]} and should be ${want[i]}`;
      recorder.check(false, {
        check: 'kv',
        row: t,
        column: i,
        got: got[i] as number,
        expected: want[i] as number,
        message,
      });
      return;
    }
    recorder.count('kv');
  };
  for (const [i, number] of table.entries()) {
    if (number < 0) continue;
    for (let at = 0; at < page.tokens; at++) {
      const t = i * page.tokens + at;
      const got = readToken(bytes, number * untouched.length, at, scheme, page);
      const there = t < tokens.length;
      const row = (x: ArrayLike<number> & { subarray(a: number, b: number): ArrayLike<number> }, width: number) =>
        x.subarray(t * width, (t + 1) * width);
      compare('codes', t, got.codes, there ? row(expected.codes, page.latent) : idle.codes);
      compare('scales', t, got.scales, there ? row(expected.scales, groups) : idle.scales);
      compare('zeros', t, got.zeros, there ? row(expected.zeros, groups) : idle.zeros);
      compare('rotary key', t, got.rotary, there ? row(tokens.rotary, page.rotary) : idle.rotary);
    }
  }
}

/** Attention of one query a sequence, over all its tokens, elementwise against fp64, of both sizes. */
export async function checkAttention(
  one: Case,
  attend: ReturnType<LatentMaker['make']>['attend'],
  places: LatentPlaces,
  all: readonly Tokens[],
  where: string,
): Promise<void> {
  const { runtime, device, recorder, scheme, page, heads, scale, name, own } = one;
  const width = page.latent + page.rotary;
  const lot = new Draw(one.seed + all.length);
  for (const [size, onDevice] of SIZES) {
    const type = device === runtime ? 'f32' : onDevice;
    // Zeros behind a token's own dims, but not in the query: what a page holds there must not matter.
    const q = lot.rows(all.length, heads * width, size);
    const query = halves(device, q, heads * width, 0, all.length);
    const y = poisoned(device, type, [all.length, heads * page.latent]);
    attend(query, y, places, { heads, scale });
    const got = await floatsOf(device, y);
    for (const [b, { c, rotary, length }] of all.entries()) {
      const numbers = expectedLatents(c, length, scheme, page.latent);
      const rows = Float64Array.from({ length: length * width }, () => 0);
      for (let t = 0; t < length; t++) {
        rows.set(readLatent(numbers, t, page.latent, scheme.group), t * width);
        rows.set(rotary.subarray(t * page.rotary, (t + 1) * page.rotary), t * width + page.latent);
      }
      const held = { steps: new Float64Array(rows.length), zeros: rows };
      const exactness = { unit: UNIT[type], top: device === runtime ? 0 : 1 };
      const shape = { kvHeads: 1, headDim: width, heads, scale };
      const asked = q.slice(b * heads * width, (b + 1) * heads * width);
      const exact = await exactAttention(runtime, asked, [held, held], { ...shape, ...exactness });
      for (let h = 0; h < heads; h++)
        for (let d = 0; d < own.latent; d++) {
          const value = got[(b * heads + h) * page.latent + d] as number;
          const [want, bound] = [exact.y, exact.bound].map((x) => x[h * width + d] as number) as [number, number];
          if (Math.abs(value - want) <= bound && Number.isFinite(bound)) continue;
          const message = `${name}, ${where}: dim ${d} of head ${h} of attention over ${length} tokens (${type}) is ${value}, not ${want} within ${bound}`;
          recorder.check(false, { check: 'kv', row: h, column: d, got: value, expected: want, message });
          return;
        }
      recorder.count('kv');
    }
    for (const tensor of [query, y]) tensor.dispose();
  }
}
