import type { PackedModule } from '../../formats/artifact/schema.js';
import { type DType, type Tensor, typed } from '../../native/binding.js';
import { quantType } from '../core/quant-type.js';
import { disposePacked, uploadStored } from '../model/packed.js';
import type { Decoded } from './decode.js';
import { dequantized } from './dequantize.js';
import { numberOf } from './floats.js';
import { activations, chooseColumns, MOST_TOKENS } from './kernel-data.js';
import { rounding, sweep } from './kernel-sweep.js';
import type { KernelRules } from './layout.js';
import { layoutOf, packedWeight } from './layouts/index.js';
import type { ModuleContext } from './module.js';
import { asCodes } from './token-codes.js';

interface Reference {
  /** Output features, ascending. */
  readonly columns: readonly number[];
  /** x W in f64 and the sum of the magnitudes that a kernel adds, [MOST_TOKENS][columns]. */
  readonly product: Float64Array;
  readonly size: Float64Array;
  /** What the layout's own arithmetic may be away besides: what is stored or aligned, and in f16 the weights' rounding. */
  readonly stored: Float64Array;
  readonly rounded: Float64Array;
  /** Above 16 tokens the kernel of the packed format may round weights to the type of the activations (docs/internals/kernels, scaled.md and large.md). */
  readonly rounds: boolean;
  /** And scales before. */
  readonly roundsScales: boolean;
}

/**
 * Runs a module's packed bytes through the kernel that reads them on `ctx.kernel`'s device, in f16 and bf16, for many
 * numbers of tokens, and compares outputs with f64 products of the decoded weights. Returns the largest error / bound;
 * undefined where lpq has no kernel for the module.
 */
export async function runKernel(
  ctx: ModuleContext,
  name: string,
  module: PackedModule,
  decoded: Decoded,
): Promise<number | undefined> {
  const rt = ctx.kernel;
  if (!rt || decoded.problems.length > 0) return undefined;
  const host = packedWeight(name, module, (suffix) => ctx.weights.tensor(`${name}.${suffix}`), ctx.dynamic);
  const rules = layoutOf(module.layout)?.kernel;
  if (!host || !rules) return undefined;
  const packed = uploadStored(rt, host);
  const [n, k] = module.shape;
  try {
    if (rules.compare) return await rules.compare(ctx, rt, name, module, decoded, packed);
    const x = activations(k, ctx.seed);
    const codes = rules.codes === true ? packed.weights.dtype : rules.codes;
    const read = codes ? asCodes(x, k, codes) : x;
    const reference = await referenceOf(ctx, rules, module, decoded, read, codes === 'f8_e4m3');
    const { columns, product, size, stored, rounded, rounds, roundsScales } = reference;
    return await sweep({ ctx, rt, name, n, k, columns }, x, packed, (dtype, tokens, at) => {
      const want = product[at]!;
      // bf16 rounds eight times as far, and the scales besides.
      const half = roundsScales ? 2.04 : 1.02;
      const share = tokens <= 16 ? 0 : dtype === 'f16' ? half : rounds ? 16.4 : 0;
      // Sums of K terms and a few factors in f32, then one rounding.
      const sums = (size[at]! * (k + 8)) / 2 ** 24;
      return [want, sums + stored[at]! * 1.01 + share * rounded[at]! + rounding(dtype, want)];
    });
  } finally {
    disposePacked(packed);
  }
}

async function referenceOf(
  { runtime, seed, kernel }: ModuleContext,
  rules: KernelRules,
  module: PackedModule,
  decoded: Decoded,
  x: Float64Array,
  aligned: boolean,
): Promise<Reference> {
  const [n, k] = module.shape;
  const { parts, group } = decoded;
  const weight = await dequantized(runtime, module, decoded, 'f32');
  const w = typed(weight);
  const type = quantType(module.type);
  const columns = chooseColumns(n, seed);
  const product = new Float64Array(MOST_TOKENS * columns.length);
  const size = new Float64Array(product.length);
  const off = new Float64Array(product.length);
  const halves = new Float64Array(product.length);
  const integers = type.kind === 'int' && rules.rounds === true;
  const fused = integers && rules.fused === true;
  const rounds = rules.roundsOnDevices === true && kernel !== undefined && kernel.device !== 'cpu';
  const groupOf = groupsOf(k, module.scales.block[1], group, parts.get('permutation'));
  const scales = parts.get('scales')!;
  const groups = scales.shape[1] as number;
  const stored = typed<Uint16Array | Uint8Array | Float32Array>(scales);
  for (const [j, row] of columns.entries())
    for (let m = 0; m < MOST_TOKENS; m++) {
      let [sum, sizes, offs, half] = [0, 0, 0, 0];
      let [most, running] = [0, 0];
      for (let c = 0; c < k; c++) {
        const input = x[m * k + c]!;
        const value = w[row * k + c]!;
        // Of e4m3 the tensor core adds 32 products and the sum so far at once, each cut 13 bits below the largest of them; after
        // 128 fp32 takes over.
        if (aligned) {
          if (c % 32 === 0) {
            offs += (33 * most) / 2 ** 13;
            most = c % 128 === 0 ? 0 : Math.abs(running);
            if (c % 128 === 0) running = 0;
          }
          most = Math.max(most, Math.abs(input * value));
          running += input * value;
        }
        // Integers: a kernel may add x q and x zero, each at most 2^(bits+1) scales, before their difference counts.
        const scale = type.kind === 'int' ? scaleAt(scales.dtype, stored[row * groups + groupOf[c]!]!) : 0;
        sum += input * value;
        sizes += Math.abs(input) * (Math.abs(value) + 2 ** (type.bits + 1) * scale);
        // Kernels of more than 16 tokens round weights to f16, as the papers' do.
        if (integers) half += Math.abs(input) * (Math.abs(value) * 2 ** -11 + 2 ** -25);
        if (rounds) {
          const lost = module.zeros.kind === 'const' ? 0 : 2 ** (type.bits + 1) * scale;
          half += Math.abs(input) * ((Math.abs(value) + lost) * 2 ** -11 + 2 ** -24);
        }
        // {s, t}: t is the product of zero point and scale in f16.
        if (fused) offs += Math.abs(input) * (2 ** (type.bits - 11) * scale + 2 ** -25);
      }
      offs += (33 * most) / 2 ** 13;
      product[m * columns.length + j] = sum;
      size[m * columns.length + j] = sizes;
      off[m * columns.length + j] = offs;
      halves[m * columns.length + j] = half;
    }
  weight.dispose();
  const roundsScales = rounds && scales.dtype === 'bf16';
  return { columns, product, size, stored: off, rounded: halves, rounds, roundsScales };
}

/** The group of every input feature. */
function groupsOf(k: number, length: number, group: Tensor | undefined, permutation: Tensor | undefined): Int32Array {
  if (group) return typed<Int32Array>(group);
  const groups = Int32Array.from({ length: k }, (_, feature) => Math.floor(feature / length));
  if (!permutation) return groups;
  const order = typed<Int32Array>(permutation);
  const placed = new Int32Array(k);
  for (const [column, feature] of order.entries()) placed[feature] = groups[column]!;
  return placed;
}

function scaleAt(dtype: DType, stored: number): number {
  if (dtype === 'f32') return Math.abs(stored);
  if (dtype === 'f8_e8m0') return 2 ** (stored - 127);
  return Math.abs(numberOf(dtype, stored));
}
