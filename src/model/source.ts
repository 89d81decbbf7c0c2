import type { OpParams, Tensor } from '../../native/binding.js';

/**
 * Where a model graph takes its weights from: a source checkpoint, a quantized one (dequantized on demand) or a packed
 * one (through the verifier's decoder).
 */
export interface WeightSource {
  /** The directory, for messages. */
  readonly dir: string;
  /** config.json, parsed and otherwise untouched. */
  readonly config: Record<string, unknown>;
  /** Names of all weights, as in the source checkpoint (quantized modules appear as NAME.weight). */
  names(): Iterable<string>;
  has(name: string): boolean;
  /** [..] of the weight without reading it. */
  shape(name: string): readonly number[];
  /** Whether the weight is the dequantized one of a module: [N, K], also where the source checkpoint had [K, N]. */
  quantized?(name: string): boolean;
  /** f32, f16 or bf16; a zero-copy view where possible. The caller disposes of it. */
  tensor(name: string): Promise<Tensor>;
  /**
   * What a packed kernel multiplies with instead of NAME.weight, where the source holds a form that there is one for. The
   * caller disposes of its tensors.
   */
  packed?(name: string): PackedWeight | undefined;
}

/** A weight as the kernel of its layout takes it (ops.gemmPacked, gemmMarlin, gemmTurbomind). */
export type PackedWeight = {
  /** [N, K]. */
  readonly shape: readonly [number, number];
  /** typeParams() of the codes' type. */
  readonly type: OpParams;
  /** 32, 64, 128, or 0 for one scale a row. */
  readonly groupLength: number;
  readonly weights: Tensor;
  readonly scales: Tensor;
} & (
  | {
      readonly layout: 'tilus';
      /** Of grids without zero points. */
      readonly zero: number;
      readonly zeros?: Tensor;
    }
  | {
      readonly layout: 'marlin';
      readonly zeros?: Tensor;
      /** I32 [K]: the input feature of each stored row. */
      readonly permutation?: Tensor;
    }
  | {
      readonly layout: 'turbomind';
      /** Tiles run along K first. */
      readonly experts: boolean;
    }
);
