import type { KvLatents } from '../../formats/kv/latent.js';
import { type KvModelScheme, type KvScheme, kvSchemeAt } from '../../formats/kv/scheme.js';
import type { Tensor } from '../../native/binding.js';
import type { InputTypeName } from '../core/input-type.js';
import type { PackedWeight } from './kernels/kernel.js';

export type { KvModelScheme, KvScheme } from '../../formats/kv/scheme.js';

/** What the weights of a model are called and how they are shaped: all that its graph asks for. */
export interface WeightShapes {
  /** The directory, for messages. */
  readonly dir: string;
  /** config.json, parsed and otherwise untouched. */
  readonly config: Record<string, unknown>;
  /** Which of config.json's blocks the model is taken to have, in order: a trial of some of them; absent: all. */
  readonly part?: readonly number[] | undefined;
  /** Names of all weights, as in the source checkpoint (quantized modules appear as NAME.weight). */
  names(): Iterable<string>;
  has(name: string): boolean;
  /** [..] of the weight without reading it. */
  shape(name: string): readonly number[];
  /** Whether the weight is the dequantized one of a module: [N, K], also where the source checkpoint had [K, N]. */
  quantized?(name: string): boolean;
}

/**
 * Where a model graph takes its weights from: a source checkpoint, a quantized one (dequantized on demand) or a packed
 * one (through the verifier's decoder).
 */
export interface WeightSource extends WeightShapes {
  /** f32, f16 or bf16; a zero-copy view where possible. The caller disposes of it. */
  tensor(name: string): Promise<Tensor>;
  /**
   * What a packed kernel multiplies with instead of NAME.weight, where the source holds a form that there is one for. The
   * caller disposes of its tensors.
   */
  packed?(name: string): PackedWeight | undefined | Promise<PackedWeight | undefined>;
  /** How a linear reads its input if that is rounded; `name`: of its weight. */
  reads?(name: string): ActivationForm | undefined;
  /** What W4Ax multiplies with instead of NAME.weight, for modules whose activations are quantized too. The caller disposes of its tensors. */
  mixed?(name: string): Promise<MixedWeight> | undefined;
  /** How the cache of keys and values is quantized. */
  readonly kv?: KvForm | undefined;
  /** How the cache of latent attention is quantized. */
  readonly latents?: KvLatents | undefined;
}

/** What a linear reads instead of its input x [T,K]. */
export interface ActivationForm {
  /** [K]: column j of the weight multiplies channel order[j] of x; absent: j. */
  readonly order?: Int32Array;
  /**
   * For each block of 128 columns the bits of its codes, 4 or 8, and the share of a token's largest magnitude that the codes
   * reach; absent: x is gathered, not quantized.
   */
  readonly blocks?: { readonly bits: Uint8Array; readonly clip: Float32Array };
  /** Where x is rounded to a type of few bits; `most`: its largest magnitude, for types with calibrated scales. */
  readonly rounded?: { readonly type: InputTypeName; readonly most?: number };
}

/** A weight for ops.gemmW4ax: codes I8 [N,K], scales f32 [N,K/128], columns as `form` reads them. */
export interface MixedWeight {
  readonly codes: Tensor;
  readonly scales: Tensor;
  readonly form: ActivationForm & Required<Pick<ActivationForm, 'blocks'>>;
}

/** Keys and values quantized asymmetrically, channel by channel over `group` tokens: ops.simulateKv. */
export interface KvChannels {
  readonly bits: number;
  readonly group: number;
  readonly clip?: true | undefined;
}

/** That of W4Ax (docs/fmpq.md), or a packed cache (docs/kv-cache.md). */
export type KvForm = KvChannels | KvModelScheme;

/** That of one layer. */
export function kvFormAt(form: KvForm | undefined, layer: number): KvChannels | KvScheme | undefined {
  return form && 'form' in form ? kvSchemeAt(form, layer) : form;
}
