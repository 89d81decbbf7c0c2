import { LpqError } from '../../src/core/error.js';
import { type Granularity, groupCount } from '../../src/core/granularity.js';
import type { SafetensorsDtype } from '../safetensors/dtypes.js';
import type { TensorSpec } from '../safetensors/header.js';

/** What decides the shapes of a pack-quantized linear. */
export interface PackQuantizedShape {
  readonly bits: number;
  /** [N, K]. */
  readonly shape: readonly [number, number];
  readonly granularity: Granularity;
  readonly symmetric: boolean;
  /** Dtype of the scales: the model's own. */
  readonly scaleDtype: Extract<SafetensorsDtype, 'F16' | 'BF16' | 'F32'>;
  /** Whether weight_g_idx is stored. */
  readonly groupIndex?: boolean;
  /** Default: dense. */
  readonly packing?: WordPacking | undefined;
}

/**
 * How codes of 3, 5, 6 and 7 bits fill words: one dense bitstream (0.13 and later, and what lpq writes), or 32 div bits
 * whole codes a word with the top bits wasted. The two agree for 1, 2, 4 and 8.
 */
export type WordPacking = 'dense' | 'whole';

/** Words that hold `count` codes. */
export function packedWords(count: number, bits: number, packing: WordPacking): number {
  return packing === 'dense' ? Math.ceil((count * bits) / 32) : Math.ceil(count / Math.floor(32 / bits));
}

/** The packings that a row of `wordCount` words for `count` codes can be of: the newer one first, none when it fits neither. */
export function packingsOf(count: number, bits: number, wordCount: number): WordPacking[] {
  return (['dense', 'whole'] as const).filter((packing) => packedWords(count, bits, packing) === wordCount);
}

/** The tensors of linear `name`, spec.md's table. Throws LPQ_PACK naming the module when the format cannot hold it. */
export function packQuantizedTensors(name: string, module: PackQuantizedShape): TensorSpec[] {
  const { bits, granularity, packing = 'dense' } = module;
  const [n, k] = module.shape;
  const groups = groupCount(granularity, k);
  const problem =
    !Number.isInteger(bits) || bits < 1 || bits > 8
      ? `it holds 1 to 8 bits, not ${bits}`
      : !Number.isInteger(groups)
        ? `its groups do not divide K = ${k}`
        : undefined;
  if (problem) throw new LpqError('LPQ_PACK', `module '${name}' does not fit pack-quantized: ${problem}`);
  return [
    { name: `${name}.weight_packed`, dtype: 'I32', shape: [n, packedWords(k, bits, packing)] },
    { name: `${name}.weight_scale`, dtype: module.scaleDtype, shape: [n, groups] },
    { name: `${name}.weight_shape`, dtype: 'I64', shape: [2] },
    ...(module.symmetric
      ? []
      : [{ name: `${name}.weight_zero_point`, dtype: 'I32', shape: [packedWords(n, bits, packing), groups] } as const]),
    ...(module.groupIndex ? [{ name: `${name}.weight_g_idx`, dtype: 'I32', shape: [k] } as const] : []),
  ];
}

/** What decides the shapes of a linear with one code a byte: int-quantized (I8) and float-quantized (F8_E4M3). */
export interface ByteShape {
  /** [N, K]. */
  readonly shape: readonly [number, number];
  readonly codeDtype: Extract<SafetensorsDtype, 'I8' | 'F8_E4M3'>;
  /** Shape of the scales: [N, 1], [ceil(N/bn), ceil(K/bk)] of blocks, or [1] of the whole tensor. */
  readonly scaleShape: readonly number[];
  readonly scaleDtype: PackQuantizedShape['scaleDtype'];
  /** Whether the scale of the input is stored, too. */
  readonly input?: boolean;
}

/** weight [N, K] and weight_scale: W[n][k] = weight * scale, no zero points; input_scale: codes of x are x / input_scale. */
export function byteTensors(
  name: string,
  { shape, codeDtype, scaleShape, scaleDtype, input }: ByteShape,
): TensorSpec[] {
  return [
    { name: `${name}.weight`, dtype: codeDtype, shape },
    { name: `${name}.weight_scale`, dtype: scaleDtype, shape: scaleShape },
    ...(input ? [{ name: `${name}.input_scale`, dtype: 'F32', shape: [1] } as const] : []),
  ];
}

/** mxfp8-quantized: E4M3 codes [N, K], and a power of two (E8M0 as U8) for every 32 of them. */
export function mxfp8Tensors(name: string, [n, k]: readonly [number, number]): TensorSpec[] {
  if (k % 32 !== 0)
    throw new LpqError('LPQ_PACK', `module '${name}' does not fit mxfp8: groups of 32 do not divide ${k}`);
  return [
    { name: `${name}.weight`, dtype: 'F8_E4M3', shape: [n, k] },
    { name: `${name}.weight_scale`, dtype: 'U8', shape: [n, k / 32] },
  ];
}

/**
 * nvfp4-pack-quantized (groups of 16, E4M3 scales, a second level) and mxfp4-pack-quantized (groups of 32, E8M0 scales as
 * U8): two E2M1 codes a byte, the lower index in the low nibble. `input`: with input_global_scale, which divides scales of activations.
 */
export function fp4Tensors(
  name: string,
  [n, k]: readonly [number, number],
  kind: 'nvfp4' | 'mxfp4',
  input = false,
): TensorSpec[] {
  const group = kind === 'nvfp4' ? 16 : 32;
  if (k % group !== 0)
    throw new LpqError('LPQ_PACK', `module '${name}' does not fit ${kind}: its groups do not divide K = ${k}`);
  return [
    { name: `${name}.weight_packed`, dtype: 'U8', shape: [n, k / 2] },
    { name: `${name}.weight_scale`, dtype: kind === 'nvfp4' ? 'F8_E4M3' : 'U8', shape: [n, k / group] },
    ...(kind === 'nvfp4' ? [{ name: `${name}.weight_global_scale`, dtype: 'F32', shape: [1] } as const] : []),
    ...(input ? [{ name: `${name}.input_global_scale`, dtype: 'F32', shape: [1] } as const] : []),
  ];
}
