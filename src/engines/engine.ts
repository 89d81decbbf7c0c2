import type { QuantScheme, SchemeOptions } from '../quantize/scheme.js';

/** A way of storing weights that an engine reads, and runs on its quick path. */
export interface EngineForm {
  /** What it is, in words: '4-bit integers, symmetric'. */
  readonly says: string;
  /** The options of lpq quantize that ask for it. */
  readonly options: string;
  /** Whether a scheme is of this type and grid, whatever its groups. */
  takes(scheme: QuantScheme): boolean;
  /** Weights that may share a scale: sizes, largest first, and 'channel'. */
  readonly groups: readonly (number | 'channel')[];
  /** A name of lpq pack --target. */
  readonly target: string;
  /** The target for calibrated scales of linears' inputs, if it differs; `only`: the engine reads only this one. */
  readonly calibrated?: { readonly target: string; readonly only?: true };
  /** Which scales it stores: as exact as f16, or in the dtype in which the model computes. */
  readonly scales: 'f16' | 'model';
  /** Why it does not hold the experts of a model; undefined where it does. */
  experts?(stored: StoredExperts): string | undefined;
}

/** How loaders look for a model's experts: there are none, by a name for each, or (some loaders only) all of a block in one tensor. */
export type StoredExperts = 'none' | 'single' | 'fused';

/** How what stands here was made sure of. */
export type Evidence =
  | 'its loader ran' // what lpq writes was loaded and computed with by this version
  | 'its conversion ran' // its own code read the tensors, on the way to its kernels
  | 'its rules were read' // its loader's source says so
  | 'untried';

/** A program that people serve models with: data; settle() and engineTarget() read it. */
export interface Engine {
  /** As --for takes it. */
  readonly name: string;
  readonly title: string;
  readonly versions: string;
  readonly evidence: Evidence;
  /** The first that suits is taken. */
  readonly forms: readonly EngineForm[];
  /** Scales of symmetric integers are made positive, where kernels were not seen to read negative ones. */
  readonly positiveScales: boolean;
  /** What else a user should know, a sentence. */
  readonly note?: string;
  /** The command that serves a directory. */
  serve(dir: string): string;
}

/** What is known of a model before it is quantized. */
export interface EngineModel {
  /** In which it computes, as config.json says: bfloat16, float16, float32. */
  readonly dtype: string | undefined;
  readonly experts: StoredExperts;
  /** Scales of inputs are calibrated (--input-scales). */
  readonly inputScales?: boolean | undefined;
}

/** Options as a user may leave them open. */
export type OpenScheme = Pick<SchemeOptions, 'bits' | 'dtype' | 'groupSize' | 'scaleDtype' | 'groupScales'> & {
  readonly symmetric?: boolean | undefined;
};
