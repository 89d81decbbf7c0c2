import { fromTyped, type NativeRuntime, type Tensor } from '../../native/binding.js';
import type { PackedWeight } from '../model/kernels/kernel.js';
import { bitsOf, numberOf } from './floats.js';
import { download, POISON, TOKENS } from './kernel-data.js';
import type { ModuleContext } from './module.js';

/** A module whose outputs [M,N] of x [M,K] are looked at. */
export interface SweepCase {
  readonly ctx: ModuleContext;
  readonly rt: NativeRuntime;
  readonly name: string;
  readonly n: number;
  readonly k: number;
  /** Output features that are compared, ascending. */
  readonly columns: readonly number[];
}

type Half = 'f16' | 'bf16';

/** What a product must be and how far it may be off; `at`: token times columns, plus the place of the column. */
type Expected = (dtype: Half, tokens: number, at: number) => readonly [want: number, bound: number];

/** Of a result: to 11 or 8 bits, or to a subnormal. */
export function rounding(dtype: Half, value: number): number {
  return dtype === 'f16' ? Math.abs(value) * 2 ** -11 + 2 ** -25 : Math.abs(value) * 2 ** -8;
}

/** Multiplies x with packed weights in f16 and bf16, for many numbers of tokens; returns the largest error / bound. */
export async function sweep(
  one: SweepCase,
  x: Float64Array,
  packed: PackedWeight,
  expected: Expected,
): Promise<number> {
  const { rt, n, k } = one;
  let ratio = 0;
  for (const dtype of ['f16', 'bf16'] as const)
    for (const tokens of TOKENS) {
      const host = [
        fromTyped(dtype, [tokens, k], Uint16Array.from(x.subarray(0, tokens * k), bitsOf(dtype))),
        fromTyped(dtype, [tokens, n], new Uint16Array(tokens * n).fill(POISON)),
      ];
      const [there, y] = host.map((tensor) => rt.upload(tensor)) as [Tensor, Tensor];
      packed.kernel.multiply(rt, there, packed, undefined, y);
      const got = await download(rt, y);
      for (const tensor of [...host, there, y]) tensor.dispose();
      ratio = Math.max(ratio, compare(one, dtype, tokens, got, expected));
    }
  return ratio;
}

/** Reports the first wrong output. */
function compare(
  { ctx, name, n, columns }: SweepCase,
  dtype: Half,
  tokens: number,
  got: Uint16Array,
  expected: Expected,
): number {
  ctx.recorder.count('kernel', tokens * columns.length);
  const fail = (row: number, token: number, value: number, want: number, bound: number): number => {
    const where = `with ${tokens} tokens in ${dtype} the kernel computes ${value} for row ${row} of token ${token}`;
    const message = `module '${name}': ${where}, fp64 says ${want} within ${bound}`;
    ctx.recorder.failures.push({ check: 'kernel', module: name, row, got: value, expected: want, message });
    return Number.POSITIVE_INFINITY;
  };
  const unwritten = got.indexOf(POISON);
  if (unwritten >= 0) return fail(unwritten % n, Math.floor(unwritten / n), Number.NaN, 0, Number.POSITIVE_INFINITY);
  const largest = dtype === 'f16' ? 65520 : 2 ** 128;
  let ratio = 0;
  for (let m = 0; m < tokens; m++)
    for (const [j, row] of columns.entries()) {
      const [want, bound] = expected(dtype, tokens, m * columns.length + j);
      if (!Number.isFinite(want)) continue; // codes that are no numbers, which no quantizer writes
      const value = numberOf(dtype, got[m * n + row]!);
      if (!Number.isFinite(value) && Math.abs(want) + bound >= largest) continue;
      const error = Math.abs(value - want) / bound;
      if (!(error <= 1)) return fail(row, m, value, want, bound);
      ratio = Math.max(ratio, error);
    }
  return ratio;
}
