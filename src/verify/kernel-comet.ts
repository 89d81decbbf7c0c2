import type { PackedModule } from '../../formats/artifact/schema.js';
import { fromTyped, type NativeRuntime, type Tensor, typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { CometWeight } from '../model/kernels/comet.js';
import type { PackedWeight } from '../model/kernels/kernel.js';
import type { Decoded } from './decode.js';
import { disposeMixedCodes, mixedOf } from './decode-comet.js';
import { bitsOf } from './floats.js';
import { activations, chooseColumns, MOST_TOKENS, TOKENS } from './kernel-data.js';
import { rounding, type SweepCase, sweep } from './kernel-sweep.js';
import type { ModuleContext } from './module.js';
import { settle } from './native.js';
import { asBlockCodes, type BlockCodes } from './token-codes.js';

/** Tokens of the comparisons that need no sweep: no whole four, so that rows of scales have a tail. */
const SOME = 17;

interface Case extends SweepCase {
  /** Of activations: 4 or 8 for each block, and its number among those of its precision (own count, ascending). */
  readonly bits: Uint8Array;
  readonly places: readonly number[];
  readonly tokens: BlockCodes;
  /** Exact sums of products of codes, [MOST_TOKENS][columns][K/128]. */
  readonly sums: Int32Array;
}

/**
 * Runs a module's bytes through ops.quantizeComet and ops.gemmComet on `rt`: codes of activations against the verifier's own; sums of
 * products with all scales one, which must be exact, for many numbers of tokens and for single blocks; and products as they
 * are, in f16 and bf16, against f64. Returns the largest error / bound of the last.
 */
export async function compareComet(
  ctx: ModuleContext,
  rt: NativeRuntime,
  name: string,
  module: PackedModule,
  decoded: Decoded,
  weight: PackedWeight,
): Promise<number> {
  const packed = weight as CometWeight;
  const [n, k] = module.shape;
  const mixed = await mixedOf(ctx.runtime, module, decoded);
  try {
    const { bits } = mixed.form.blocks;
    const x = activations(k, ctx.seed);
    const columns = chooseColumns(n, ctx.seed);
    const tokens = asBlockCodes(x, k, mixed.form);
    const count = { 4: 0, 8: 0 };
    const places = Array.from(bits, (each) => count[each as 4 | 8]++);
    const sums = blockSums(typed<Int8Array>(mixed.codes), k, tokens, columns);
    const all = { ctx, rt, name, n, k, bits, places, tokens, columns, sums };
    const exact = (await codesAgree(all, x, packed)) && (await sumsAgree(all, packed));
    if (!exact) return Number.POSITIVE_INFINITY;
    return await productsAgree(all, x, packed, typed<Float32Array>(mixed.scales));
  } finally {
    disposeMixedCodes(mixed);
  }
}

function blockSums(codes: Int8Array, k: number, tokens: BlockCodes, columns: readonly number[]): Int32Array {
  const blocks = k / 128;
  const sums = new Int32Array(MOST_TOKENS * columns.length * blocks);
  let at = 0;
  for (let m = 0; m < MOST_TOKENS; m++)
    for (const row of columns)
      for (let b = 0; b < blocks; b++) {
        let sum = 0;
        for (let c = 128 * b; c < 128 * b + 128; c++) sum += tokens.codes[m * k + c]! * codes[row * k + c]!;
        sums[at++] = sum;
      }
  return sums;
}

/** The first tokens' codes as the kernels have them (native/w4ax-ops.ts, quantizeComet): bytes, and two nibbles a byte. */
function stored({ k, bits, places, tokens }: Case, rows: number): { x8: Int8Array; x4: Uint8Array } {
  const blocks = bits.length;
  const eights = bits.filter((each) => each === 8).length;
  const x8 = new Int8Array(rows * eights * 128);
  const x4 = new Uint8Array(rows * (blocks - eights) * 64);
  for (let t = 0; t < rows; t++)
    for (let b = 0; b < blocks; b++)
      for (let i = 0; i < 128; i++) {
        const code = tokens.codes[t * k + 128 * b + i]!;
        if (bits[b] === 8) x8[(t * eights + places[b]!) * 128 + i] = code;
        else
          x4[(t * (blocks - eights) + places[b]!) * 64 + 16 * Math.floor(i / 32) + (i % 16)]! |=
            (code & 15) << (i % 32 < 16 ? 0 : 4);
      }
  return { x8, x4 };
}

function fail({ ctx, name }: Case, message: string, got: number, expected: number, row?: number): false {
  ctx.recorder.failures.push({
    check: 'kernel',
    module: name,
    ...(row !== undefined && { row }),
    got,
    expected,
    message: `module '${name}': ${message}`,
  });
  return false;
}

/** ops.quantizeComet's bytes. */
async function codesAgree(all: Case, x: Float64Array, packed: CometWeight): Promise<boolean> {
  const { rt, k, bits, tokens, ctx } = all;
  const blocks = bits.length;
  const want = stored(all, SOME);
  const pitch = Math.ceil(SOME / 4) * 4;
  const there = rt.upload(
    rt.device === 'cpu'
      ? fromTyped('f32', [SOME, k], Float32Array.from(x.subarray(0, SOME * k)))
      : fromTyped('f16', [SOME, k], Uint16Array.from(x.subarray(0, SOME * k), bitsOf('f16'))),
  );
  const out = {
    x8: rt.allocate('i8', [SOME, 128 * packed.eights]),
    x4: rt.allocate('u8', [SOME, 64 * (blocks - packed.eights)]),
    scales: rt.allocate('f32', [blocks, pitch]),
  };
  const { clip, permutation } = packed;
  const form = { bits: packed.bits, clip, blocks: packed.blocks, ...(permutation && { order: permutation }) };
  ops.quantizeComet(rt, there, form, out);
  const [x8, x4, scales] = [await read(rt, out.x8), await read(rt, out.x4), await read(rt, out.scales)];
  for (const tensor of [there, ...Object.values(out)]) tensor.dispose();
  ctx.recorder.count('kernel', x8.length + x4.length + SOME * blocks);
  for (const [got, expected, what] of [
    [x8, want.x8, '8-bit'],
    [x4, want.x4, '4-bit'],
  ] as const) {
    const at = got.findIndex((value: number, i: number) => value !== expected[i]);
    if (at >= 0)
      return fail(
        all,
        `activations become ${got[at]} at byte ${at} of the ${what} codes, not ${expected[at]}`,
        got[at]!,
        expected[at]!,
      );
  }
  for (let b = 0; b < blocks; b++)
    for (let t = 0; t < SOME; t++) {
      const [got, expected] = [scales[b * pitch + t]!, tokens.scales[t * blocks + b]!];
      if (got !== expected)
        return fail(all, `the scale of block ${b} of token ${t} is ${got}, not ${expected}`, got, expected);
    }
  return true;
}

async function read(rt: NativeRuntime, tensor: Tensor): Promise<Int8Array | Uint8Array | Float32Array> {
  await settle(rt);
  const host = await rt.download(tensor);
  const values = typed<Int8Array | Uint8Array | Float32Array>(host).slice();
  host.dispose();
  return values;
}

/** Sums with every scale one: of all blocks, for every number of tokens, and of single blocks. */
async function sumsAgree(all: Case, packed: CometWeight): Promise<boolean> {
  const blocks = all.bits.length;
  for (const rows of TOKENS) if (!(await sumsOf(all, packed, rows, undefined))) return false;
  for (const block of new Set([0, blocks >> 1, blocks - 1]))
    if (!(await sumsOf(all, packed, SOME, block))) return false;
  return true;
}

async function sumsOf(all: Case, packed: CometWeight, rows: number, block: number | undefined): Promise<boolean> {
  const { rt, n, columns, sums, ctx, bits } = all;
  const blocks = bits.length;
  const { x8, x4 } = stored(all, rows);
  const pitch = Math.ceil(rows / 4) * 4;
  // Those of groups: of two levels factors, whose rows then have a scale of 1.
  const width = (packed.groups ?? packed.scales).shape[1] as number;
  const ofGroups = packed.groups ? new Int8Array(blocks * width) : new Float32Array(blocks * width);
  if (block === undefined) ofGroups.fill(1);
  else ofGroups.fill(1, block * width, (block + 1) * width);
  const host = [
    fromTyped('i8', [rows, x8.length / rows], x8),
    fromTyped('u8', [rows, x4.length / rows], x4),
    fromTyped('f32', [blocks, pitch], new Float32Array(blocks * pitch).fill(1)),
    fromTyped(packed.groups ? 'i8' : 'f32', [blocks, width], ofGroups),
    fromTyped('f32', [n], new Float32Array(n).fill(1)),
    fromTyped('f32', [rows, n], new Float32Array(rows * n).fill(Number.NaN)),
  ];
  const there = host.map((tensor) => rt.upload(tensor));
  const [a8, a4, ones, groups, ofRows, y] = there as [Tensor, Tensor, Tensor, Tensor, Tensor, Tensor];
  const activationCodes = { x8: a8, x4: a4, scales: ones, blocks: packed.blocks };
  const scales = packed.groups ? { scales: ofRows, groups } : { scales: groups };
  ops.gemmComet(rt, activationCodes, { codes: packed.weights, ...scales }, undefined, y);
  const got = await read(rt, y);
  for (const tensor of [...host, ...there]) tensor.dispose();
  ctx.recorder.count('kernel', rows * columns.length);
  for (let m = 0; m < rows; m++)
    for (const [j, row] of columns.entries()) {
      const own = sums.subarray((m * columns.length + j) * blocks, (m * columns.length + j + 1) * blocks);
      const want = block === undefined ? own.reduce((all, sum) => all + sum, 0) : own[block]!;
      // fp32 holds sums of whole numbers below 2^24, whatever their order.
      if (own.reduce((all, sum) => all + Math.abs(sum), 0) >= 2 ** 24) continue;
      const value = got[m * n + row]!;
      if (value !== want)
        return fail(
          all,
          `with ${rows} tokens and scales of 1 the kernel sums up ${value} for row ${row} of token ${m}` +
            `${block === undefined ? '' : `, block ${block}`}, exactly it is ${want}`,
          value,
          want,
          row,
        );
    }
  return true;
}

/** Products as they are. */
function productsAgree(all: Case, x: Float64Array, packed: CometWeight, weightScales: Float32Array): Promise<number> {
  const { bits, columns, sums, tokens } = all;
  const blocks = bits.length;
  return sweep(all, x, packed, (dtype, _tokens, at) => {
    const [m, row] = [Math.floor(at / columns.length), columns[at % columns.length]!];
    let [want, size] = [0, 0];
    for (let b = 0; b < blocks; b++) {
      const term = sums[at * blocks + b]! * (tokens.scales[m * blocks + b]! * weightScales[row * blocks + b]!);
      want += term;
      size += Math.abs(term);
    }
    // A rounding of each factor and one a step of K / 128, of at most the sum of sizes; items that blocks share add two more. Then the
    // result's.
    return [want, ((size * (blocks + 4)) / 2 ** 24 + rounding(dtype, want)) * 1.01 + blocks * 2 ** -125];
  });
}
