import type { CanonicalModule } from '../../../formats/canonical/schema.js';
import type { DType, NativeRuntime, OpParams, Tensor } from '../../../native/binding.js';
import type { ExpertGating } from '../../../native/packed-ops.js';
import { quantType, typeParams } from '../../core/quant-type.js';

/** A weight as the kernel of its layout takes it. A kernel's own weights have further tensors and numbers. */
export interface PackedWeight {
  readonly kernel: PackedKernel;
  /** [N, K]. */
  readonly shape: readonly [number, number];
  /** typeParams() of the codes' type. */
  readonly type: OpParams;
  /** 32, 64, 128, or 0 for one scale per row. */
  readonly groupSize: number;
  readonly weights: Tensor;
  readonly scales: Tensor;
}

/** A module whose tensors are to be bound, by the last part of their names. */
export interface Binding {
  readonly name: string;
  readonly module: Pick<CanonicalModule, 'type' | 'shape' | 'granularity' | 'scales' | 'zeros' | 'activations'>;
  has(suffix: string): boolean;
  load(suffix: string): Tensor;
  /** What the linear reads becomes codes, and the device multiplies these. */
  readonly codes: boolean;
}

/** How weights of one input become one, the output features of the first before those of the next. */
export interface Joining<W extends PackedWeight> {
  /** Output features of a tile: whole tiles stand beside or below one another. */
  readonly tile: number;
  /** Output features that the tensors have, padding included. */
  rows(packed: W): number;
  /** Whether weights of one form read their input alike, too. */
  readAlike(rt: NativeRuntime, parts: readonly W[]): boolean | Promise<boolean>;
  join(rt: NativeRuntime, parts: readonly W[], shape: readonly [number, number]): W;
}

/** What runs a packed weight: which tensors it binds, the native operation, and how siblings join. One file each. */
export interface PackedKernel<W extends PackedWeight = PackedWeight> {
  /** For tests and messages. */
  readonly name: string;
  /** Fields of a weight that are tensors. */
  readonly tensors: readonly string[];
  /** x, y and the bias may be of any float dtype, and sums stay in fp32; else they have 16 bits. */
  readonly wide?: boolean;
  /** Activations become codes in a form of the kernel's own. */
  readonly readsCodes?: boolean;
  /** What activations become before they are multiplied, one scale per token. */
  codes?(packed: W): DType;
  /** The module's weight; undefined where the kernel does not take it. */
  bind(binding: Binding): W | undefined;
  /** What is done once the tensors are on the device; may let go of some. */
  arrive?(rt: NativeRuntime, packed: W): W;
  /** What the weight becomes once its siblings are joined to it; takes its tensors. For weights that stay in memory. */
  settle?(rt: NativeRuntime, packed: W): Promise<PackedWeight>;
  /** y = x Wᵀ + bias; x [M,K], y [M,N] and bias [N] f16 or bf16, or as `wide` says (bias f32). */
  multiply(rt: NativeRuntime, x: Tensor, packed: W, bias: Tensor | undefined, y: Tensor): void;
  /**
   * The same of experts: x sorted by expert, whose rows begin where offsets I32 [E+1] says; tensors [E, ...], bias [E,N]. Rows of y that
   * no expert has stay as they are. Where it is gated, packed and bias are as interleave() and ops.interleaveGates leave them.
   */
  multiplyExperts?(
    rt: NativeRuntime,
    x: Tensor,
    offsets: Tensor,
    packed: W,
    bias: Tensor | undefined,
    y: Tensor,
    gating?: ExpertGating,
  ): void;
  /** Experts' weights, the blocks of a gate above those of up, as gated products take them; takes their tensors. */
  interleave?(rt: NativeRuntime, packed: W): W;
  /** Undefined where weights do not come apart so. */
  readonly joining?: Joining<W>;
}

/** What every kernel asks of a module. */
export function common({ module }: Binding): Pick<PackedWeight, 'shape' | 'type' | 'groupSize'> {
  return {
    shape: module.shape,
    type: typeParams(quantType(module.type)),
    groupSize: module.granularity.kind === 'group' ? module.granularity.size : 0,
  };
}
