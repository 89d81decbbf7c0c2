import { dequantizeModule } from '../../../formats/canonical/dequantize.js';
import type { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { moveChunks } from '../../../formats/gguf/states.js';
import { type GgufTypeName, ggufType, rowBytes } from '../../../formats/gguf/types.js';
import { allocate, fromTyped, type NativeRuntime, type Tensor, typed } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { LpqError } from '../../core/error.js';
import type { WeightSource } from '../../model/source.js';
import { hasForm, integerForm } from '../integer-form.js';
import { offsetZeros } from '../operands.js';
import type { PackJob } from '../target.js';
import type { CodesForm } from './forms.js';

/** Blocks U8 [N, bytes of a row] from a module's codes; row r is row order[r] of the module. The caller disposes of them. */
export async function encodeCodes(
  job: Pick<PackJob, 'rt' | 'checkpoint' | 'name' | 'module'>,
  form: CodesForm,
  order: Int32Array,
): Promise<Tensor> {
  const { rt, checkpoint, name, module } = job;
  const [n, k] = module.shape;
  const codes = checkpoint.require(name, 'codes');
  const scales = checkpoint.require(name, 'scales');
  const rows = fromTyped('i32', [n], order);
  const integers = integerForm(module, { zeroRange: [0, 0] });
  const stored = form.minima ? checkpoint.part(name, 'zeros') : undefined;
  const zeros = form.minima && hasForm(integers) ? offsetZeros({ module, zeros: stored }, integers) : undefined;
  stored?.dispose();
  if (zeros) checkMinima(name, scales, zeros);
  const blocks = allocate('u8', [n, rowBytes(ggufType(form.type), k) as number]);
  const { type, bits, group, flip, add } = form;
  rt.enqueue('gguf_encode_blocks', [codes, scales, rows, ...(zeros ? [zeros] : [])], [blocks], {
    type,
    bits,
    k,
    group,
    flip,
    add,
  });
  await rt.sync();
  for (const tensor of [codes, scales, rows, zeros]) tensor?.dispose();
  return blocks;
}

/** Weights of a block of mxfp4, and its bytes. */
const [BLOCK, BYTES] = [32, 17];

/** Blocks U8 [N, bytes of a row] of mxfp4: the exponent, then code i low and code i + 16 high in byte i. The caller disposes of them. */
export function encodeFours(
  { checkpoint, name, module }: Pick<PackJob, 'checkpoint' | 'name' | 'module'>,
  order: Int32Array,
): Tensor {
  const [n, k] = module.shape;
  const [codes, scales] = [checkpoint.require(name, 'codes'), checkpoint.require(name, 'scales')];
  const blocks = allocate('u8', [n, (k / BLOCK) * BYTES]);
  const [pairs, powers, to] = [codes.bytes(), scales.bytes(), blocks.bytes()];
  let at = 0;
  for (const row of order)
    for (let block = 0; block < k / BLOCK; block++) {
      to[at++] = powers[(row * k) / BLOCK + block] as number;
      const first = (row * k) / 2 + block * 16;
      for (let i = 0; i < 16; i++) {
        const shift = 4 * (i & 1);
        const [low, high] = [pairs[first + (i >> 1)] as number, pairs[first + 8 + (i >> 1)] as number];
        to[at++] = ((low >> shift) & 15) | (((high >> shift) & 15) << 4);
      }
    }
  for (const tensor of [codes, scales]) tensor.dispose();
  return blocks;
}

/** A minimum must be finite, and the zero point must be found in it again. */
function checkMinima(name: string, scales: Tensor, zeros: Tensor): void {
  const bits = typed<Uint16Array>(scales);
  const values = typed<Uint8Array>(zeros);
  for (const [i, zero] of values.entries()) {
    const scale = half(bits[i] as number);
    if (zero === 0 || (scale !== 0 && zero * scale < 65520)) continue;
    throw new LpqError('LPQ_PACK', `module '${name}': a minimum of -(zero * scale) does not fit f16`, {
      got: `zero ${zero}, scale ${scale} of group ${i}`,
      expected: 'a scale above 0 and a product below 65520',
      hint: 'Quantize it with --sym, or pack it for gguf-q4_k.',
    });
  }
}

function half(bits: number): number {
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  const magnitude = exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15);
  return bits & 0x8000 ? -magnitude : magnitude;
}

/**
 * A weight F32 [N, K] as it was before quantizing, where `source` has it, or as it was quantized. `turned`: checkpoints of this
 * architecture have it as [K, N]. Throws LPQ_TENSOR_SHAPE.
 */
export async function moduleWeight(
  rt: NativeRuntime,
  checkpoint: CanonicalCheckpoint,
  name: string,
  source: WeightSource | undefined,
  turned = false,
): Promise<Tensor> {
  if (!source) return dequantizeModule(rt, checkpoint, name);
  const { shape } = checkpoint.module(name);
  const across = turned && !source.quantized?.(`${name}.weight`);
  const expected = across ? shape.toReversed() : shape;
  const stored = await source.tensor(`${name}.weight`);
  if (`${stored.shape}` !== `${expected}`)
    throw new LpqError('LPQ_TENSOR_SHAPE', `'${name}.weight' of ${source.dir} is not the one that was quantized`, {
      got: `[${stored.shape}]`,
      expected: `[${expected}]`,
      hint: 'Give the checkpoint that was quantized as --source.',
    });
  const wide = allocate('f32', expected);
  ops.cast(rt, stored, wide);
  const weight = across ? allocate('f32', shape) : wide;
  if (across) ops.transpose(rt, wide, weight);
  await rt.sync();
  for (const each of across ? [stored, wide] : [stored]) each.dispose();
  return weight;
}

/** What a search found. */
export interface Searched {
  /** U8 [N, bytes of a row]. */
  readonly blocks: Tensor;
  /** F32 [N, K]: what the blocks stand for, rows in the order of the weight. */
  readonly mean: Tensor;
  /** Sum of squared differences, and of squares. */
  readonly error: number;
  readonly norm: number;
}

/**
 * Blocks of least squared error for a weight F32 [N, K], with the weight of each column's errors in `weights` F32
 * [K]. Throws LPQ_MODULE_NUMERICS for weights that are not finite,
 * LPQ_SCALE_RANGE where f16 does not hold a scale, naming `name`. The caller disposes of blocks and mean.
 */
export async function searchBlocks(
  rt: NativeRuntime,
  name: string,
  weight: Tensor,
  type: GgufTypeName,
  order: Int32Array,
  weights?: Tensor,
): Promise<Searched> {
  const [n, k] = weight.shape as [number, number];
  const rows = fromTyped('i32', [n], order);
  const blocks = allocate('u8', [n, rowBytes(ggufType(type), k) as number]);
  const mean = allocate('f32', [n, k]);
  const stats = allocate('f64', [n, 4]);
  rt.enqueue('gguf_search', [weight, rows, ...(weights ? [weights] : [])], [blocks, mean, stats], { type });
  await rt.sync();
  const sums = [0, 0, 0, 0] as [number, number, number, number];
  for (const [i, value] of typed<Float64Array>(stats).entries()) sums[(i % 4) as 0] += value;
  for (const tensor of [rows, stats]) tensor.dispose();
  const [error, norm, broken, over] = sums;
  if (broken > 0 || over > 0) {
    for (const tensor of [blocks, mean]) tensor.dispose();
    throw broken > 0
      ? new LpqError('LPQ_MODULE_NUMERICS', `the weight of ${name} holds ${broken} values that are NaN or infinite`)
      : new LpqError('LPQ_SCALE_RANGE', `${over} blocks of ${name} have scales beyond f16`, {
          hint: 'Check the weights of this module: they are implausibly large.',
        });
  }
  return { blocks, mean, error, norm };
}

/** The same for a tensor of any float type, some rows at a time: embeddings are large. */
export async function searchRows(rt: NativeRuntime, name: string, weight: Tensor, type: GgufTypeName): Promise<Tensor> {
  const [n, k] = weight.shape as [number, number];
  const width = rowBytes(ggufType(type), k) as number;
  const blocks = allocate('u8', [n, width]);
  const step = Math.max(1, Math.floor(2 ** 24 / k));
  for (let first = 0; first < n; first += step) {
    const count = Math.min(step, n - first);
    const part = weight.view([count, k], first * k);
    const wide = allocate('f32', [count, k]);
    ops.cast(rt, part, wide);
    await rt.sync();
    const order = Int32Array.from({ length: count }, (_, row) => row);
    const found = await searchBlocks(rt, name, wide, type, order);
    blocks.bytes(first * width, count * width).set(found.blocks.bytes());
    for (const tensor of [part, wide, found.blocks, found.mean]) tensor.dispose();
  }
  return blocks;
}

/** Chunks of every row in another order, or back, in place. */
export function takeColumns(tensor: Tensor, order: Int32Array | undefined, back = false): Tensor {
  if (order)
    tensor
      .bytes()
      .set(moveChunks(tensor.bytes(), tensor.shape.length > 1 ? (tensor.shape[0] as number) : 1, order, back));
  return tensor;
}

/** Rows of a tensor in another order, any dtype. The caller disposes of it. */
export async function takeRows(rt: NativeRuntime, tensor: Tensor, order: Int32Array): Promise<Tensor> {
  const out = allocate(tensor.dtype, tensor.shape);
  const rows = fromTyped('i32', [order.length], order);
  rt.enqueue('gguf_take_rows', [tensor, rows], [out], {});
  await rt.sync();
  rows.dispose();
  return out;
}
