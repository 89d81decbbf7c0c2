import { type DType, fromTyped, type NativeRuntime, type Tensor, type TimedCall } from '../../native/binding.js';
import { type QuantType, typeParams } from '../../src/core/quant-type.js';
import { benchOps } from '../ops.js';
import type { GemmShape } from './cases.js';
import type { Variant } from './schema.js';

const NOISE_BYTES = 1 << 25;
/** Blocks of the packed format (docs/internals/layouts/tilus.md): N x K. */
const [BLOCK_N, BLOCK_K] = [32, 128];

export type NoiseKind = 'codes' | 'finite' | 'numbers';

/**
 * Random bytes, those among them that are finite numbers of f8_e4m3 and not odd, and random f16 or bf16 numbers, from which operands of any
 * size are filled.
 */
export class Noise {
  private readonly codes: Tensor;
  private readonly numbers: Tensor;
  private finite: Tensor | undefined;

  constructor(private readonly rt: NativeRuntime) {
    const words = randomWords();
    this.codes = this.upload(words);
    // f16 between 0.5 and 2 in size, of either sign; as bf16 between 2^-15 and 2. Sums of a hundred thousand stay finite.
    for (let i = 0; i < words.length; i++) words[i] = (words[i]! & 0x87ff87ff) | 0x38003800;
    this.numbers = this.upload(words);
  }

  private upload(words: Uint32Array): Tensor {
    const host = fromTyped('u8', [NOISE_BYTES], words);
    const there = this.rt.upload(host);
    // On the CPU an upload is a view.
    host.dispose();
    return there;
  }

  /** A tensor of the runtime; `shift` tells copies apart. */
  fill(kind: NoiseKind, dtype: DType, shape: readonly number[], shift = 0): Tensor {
    const tensor = this.rt.allocate(dtype, shape);
    this.spread(kind, tensor, shift);
    return tensor;
  }

  /** The same into a tensor that is there. */
  spread(kind: NoiseKind, tensor: Tensor, shift = 0): void {
    const noise = kind === 'finite' ? this.finiteBytes() : this[kind];
    const width = tensor.byteLength / tensor.shape.reduce((all, dim) => all * dim, 1);
    const first = (shift * 4096) % (NOISE_BYTES / 2);
    for (let at = 0; at < tensor.byteLength; ) {
      const bytes = Math.min(tensor.byteLength - at, NOISE_BYTES - first);
      const from = noise.view([bytes], first);
      const to = tensor.view([bytes / width], at / width);
      benchOps.copy(this.rt, from, to);
      for (const view of [from, to]) view.dispose();
      at += bytes;
    }
  }

  dispose(): void {
    for (const tensor of [this.codes, this.numbers, this.finite]) tensor?.dispose();
  }

  private finiteBytes(): Tensor {
    // NaN of e4m3 is 0x7f or 0xff.
    this.finite ??= this.upload(randomWords().map((word) => word & 0xfefefefe));
    return this.finite;
  }
}

function randomWords(): Uint32Array<ArrayBuffer> {
  const words = new Uint32Array(NOISE_BYTES / 4);
  let state = 0x9e3779b9;
  for (let i = 0; i < words.length; i++) {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    words[i] = state;
  }
  return words;
}

/** How often a product runs in one pass, on how many copies of the weight. */
export function rotation(weightBytes: number, l2Bytes: number): { copies: number; products: number } {
  if (l2Bytes === 0) return { copies: 1, products: 1 }; // the CPU: a pass is one product
  const copies = Math.max(2, Math.ceil((8 * l2Bytes) / weightBytes));
  return { copies, products: Math.max(20, copies) };
}

/** Weights of a product that rotate, and what goes with them. */
export interface Operands {
  readonly products: number;
  /** Bytes that a product moves at least: weights, scales, activations, results. */
  bytes(m: number): number;
  /** The calls of one pass, for `m` tokens. The caller disposes of `tensors`. */
  calls(m: number, params?: Variant): { calls: TimedCall[]; tensors: Tensor[] };
  dispose(): void;
}

export interface PackedSetting extends GemmShape {
  readonly type: QuantType;
  readonly dtype: 'f16' | 'bf16';
  /** 32, 64, 128, or 0 for one scale a row. */
  readonly group: number;
  readonly l2Bytes: number;
}

/** Weights as `lpq pack` lays them out for gemm_packed; unsigned types are symmetric about 2^(bits-1). */
export function packedOperands(noise: Noise, rt: NativeRuntime, setting: PackedSetting): Operands {
  const { type, dtype, group, k, n, l2Bytes } = setting;
  const [down, across] = [Math.ceil(n / BLOCK_N), Math.ceil(k / BLOCK_K)];
  const groups = group === 0 ? 1 : Math.ceil(k / group);
  const weightBytes = down * across * 512 * type.bits;
  const { copies, products } = rotation(weightBytes, l2Bytes);
  const weights = Array.from({ length: copies }, (_, i) =>
    noise.fill('codes', 'u8', [down, across, 512 * type.bits], i + 1),
  );
  const scales = noise.fill('numbers', dtype, [down, groups, BLOCK_N]);
  const zero = type.kind === 'int' && !type.signed ? 2 ** (type.bits - 1) : 0;
  return {
    products,
    bytes: (m) => weightBytes + scales.byteLength + 2 * m * (n + k),
    calls: (m, params = {}) => {
      const [x, y] = [noise.fill('numbers', dtype, [m, k], 99), rt.allocate(dtype, [m, n])];
      const calls = Array.from({ length: products }, (_, i) => ({
        op: 'gemm_packed',
        inputs: [x, weights[i % copies]!, scales],
        outputs: [y],
        params: { ...typeParams(type), groupSize: group, zero, ...params },
      }));
      return { calls, tensors: [x, y] };
    },
    dispose: () => {
      for (const tensor of [...weights, scales]) tensor.dispose();
    },
  };
}

/** The same product on a weight [N,K] of the activations' dtype: cuBLAS, on a GPU. */
export function denseOperands(
  noise: Noise,
  rt: NativeRuntime,
  { dtype, k, n, l2Bytes }: Omit<PackedSetting, 'type' | 'group'>,
): Operands {
  const { copies, products } = rotation(2 * n * k, l2Bytes);
  const weights = Array.from({ length: copies }, (_, i) => noise.fill('numbers', dtype, [n, k], i + 1));
  return {
    products,
    bytes: (m) => 2 * (n * k + m * (n + k)),
    calls: (m) => {
      const [x, y] = [noise.fill('numbers', dtype, [m, k], 99), rt.allocate(dtype, [m, n])];
      const calls = Array.from({ length: products }, (_, i) => ({
        op: 'linear',
        inputs: [x, weights[i % copies]!],
        outputs: [y],
      }));
      return { calls, tensors: [x, y] };
    },
    dispose: () => {
      for (const weight of weights) weight.dispose();
    },
  };
}
