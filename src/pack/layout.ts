import type { CanonicalModule } from '../../formats/canonical/schema.js';
import type { SafetensorsDtype } from '../../formats/safetensors/dtypes.js';
import type { TensorSpec } from '../../formats/safetensors/header.js';
import { allocate, type DType, type Tensor } from '../../native/binding.js';
import type { PackRuntime } from '../layout/engine.js';
import type { MemoryLayout } from '../layout/memory.js';
import type { NoForm } from './integer-form.js';
import type { ModuleFacts } from './target.js';

/** How a module, or a rank's part of one, fits a layout. */
export interface Fit {
  /** [N, K] that the layout holds. */
  readonly padded: readonly [number, number];
  /** By the last part of their names. */
  readonly tensors: readonly LayoutTensor[];
  /** One sentence each. */
  readonly notes: readonly string[];
  /** Codes stand whole in each word, as in the file that the module came from. */
  readonly packing?: 'whole';
  /** The largest magnitude that a stored scale of the input comes from. */
  readonly inputMost?: number;
}

interface LayoutTensor {
  readonly suffix: string;
  readonly dtype: SafetensorsDtype;
  readonly shape: readonly number[];
}

/** The tensors of a module, or of a rank's part of it, in canonical form. */
export interface Operands {
  readonly rt: PackRuntime;
  /** Of the module, for messages. */
  readonly name: string;
  /** With the shape of the part. */
  readonly module: CanonicalModule;
  /** U8 [N, ceil(K * bits / 8)]. */
  readonly codes: Tensor;
  /** [N, G]. */
  readonly scales: Tensor;
  /** [N, G] as stored, where the module has them. */
  readonly zeros?: Tensor | undefined;
  /** I32 [K]: the group of each input feature, where the module names them. */
  readonly groupIndex?: Tensor | undefined;
  /** I32 [K]: the input feature of each column of codes, where they were permuted. */
  readonly permutation?: Tensor | undefined;
  /** U8 [N, ceil(K/8)] of a 2:4 module: bit k of a row is 1 where the weight stays. */
  readonly mask?: Tensor | undefined;
  /** F32 [1]: the second level of scales. */
  readonly globalScale?: Tensor | undefined;
}

/**
 * A layout to the packer: what it takes, which tensors that makes, and how they are packed. One file each in layouts/, and targets choose
 * among them. What the runtime binds stands in src/model/kernels, and how the verifier reads it in src/verify/layouts.
 */
export interface PackLayout {
  /** As artifacts name it. */
  readonly name: string;
  /** Decides by the manifest entry of a module, or of a rank's part of one. */
  fit(name: string, module: CanonicalModule, facts: ModuleFacts): Fit | NoForm;
  /** The tensors of the fit, by suffix. The caller disposes of them and of the operands. Throws LPQ_PACK. */
  pack(operands: Operands, fit: Fit): Promise<Map<string, Tensor>>;
  /** Dtype that the operands' codes are handed out with; default U8. */
  readonly codes?: DType;
  /** Where the codes of a weight lie, for measuring the engine. */
  readonly memory?: {
    readonly bits: readonly number[];
    /** N and K are multiples of these. */
    readonly unit: readonly [number, number];
    of(n: number, k: number, bits: number): MemoryLayout;
  };
}

/** Tensors `name`.SUFFIX of a format by their suffixes. */
function bySuffix(name: string, tensors: readonly TensorSpec[]): LayoutTensor[] {
  return tensors.map(({ name: full, dtype, shape }) => ({ suffix: full.slice(name.length + 1), dtype, shape }));
}

/** A module that is stored as it is, without padding. */
export function exactFit(name: string, { shape }: CanonicalModule, tensors: readonly TensorSpec[]): Fit {
  return { padded: shape, tensors: bySuffix(name, tensors), notes: [] };
}

export function fits(fit: Fit | NoForm): fit is Fit {
  return 'padded' in fit;
}

/** 'Padded from ...' when a layout holds more than the module. */
export function paddingNote(shape: readonly number[], padded: readonly number[], what: string): string[] {
  if (shape[0] === padded[0] && shape[1] === padded[1]) return [];
  return [`Padded from N = ${shape[0]}, K = ${shape[1]} to N = ${padded[0]}, K = ${padded[1]} with ${what}.`];
}

export function roundUp(value: number, step: number): number {
  return Math.ceil(value / step) * step;
}

const NATIVE = { F32: 'f32', F16: 'f16', BF16: 'bf16', I32: 'i32', I16: 'i16', I8: 'i8', U8: 'u8' } as const;

/** New tensors for those of a fit, but for those that `except` names. */
export function allocateFit({ tensors }: Fit, ...except: readonly string[]): Map<string, Tensor> {
  const mine = tensors.filter(({ suffix }) => !except.includes(suffix));
  return new Map(
    mine.map(({ suffix, dtype, shape }) => [suffix, allocate(NATIVE[dtype as keyof typeof NATIVE], shape)]),
  );
}
