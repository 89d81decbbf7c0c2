import type { CanonicalModule } from '../../formats/canonical/schema.js';
import type { SafetensorsDtype } from '../../formats/safetensors/dtypes.js';
import type { Tensor } from '../../native/binding.js';
import type { PackRuntime } from '../layout/engine.js';
import type { NoForm } from './integer-form.js';
import type { ModuleFacts } from './target.js';

/** How a module, or a rank's part of one, fits a layout. */
export interface TileFit {
  /** [N, K] that the layout holds. */
  readonly padded: readonly [number, number];
  /** By the last part of their names. */
  readonly tensors: readonly { readonly suffix: string; readonly dtype: SafetensorsDtype; readonly shape: number[] }[];
  /** One sentence each. */
  readonly notes: readonly string[];
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
}

/** A layout of fragments for a kernel: what fits it, and how it is packed. Targets choose among these. */
export interface PackLayout {
  /** As artifacts name it. */
  readonly name: string;
  /** Decides by the manifest entry of a module, or of a rank's part of one. */
  fit(name: string, module: CanonicalModule, facts: ModuleFacts): TileFit | NoForm;
  /** The tensors of the fit, by suffix. The caller disposes of them and of the operands. Throws LPQ_PACK. */
  pack(operands: Operands, fit: TileFit): Promise<Map<string, Tensor>>;
}

export function fits(fit: TileFit | NoForm): fit is TileFit {
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
