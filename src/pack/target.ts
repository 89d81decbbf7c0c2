import type { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import type { CanonicalModule } from '../../formats/canonical/schema.js';
import type { TensorSpec } from '../../formats/safetensors/header.js';
import type { Tensor } from '../../native/binding.js';
import type { PackRuntime } from '../layout/engine.js';
import type { NoForm } from './integer-form.js';
import type { PackReport, PackRequest } from './pack-checkpoint.js';
import type { Split } from './parallel.js';
import type { PackPlan } from './plan.js';
import type { ReaderLimit } from './reader-limits.js';
import type { ModelRoles } from './roles.js';

/** What a target needs to know of a module besides its manifest entry. */
export interface ModuleFacts {
  /** Smallest and largest integer zero point; absent unless the module has a tensor of them. */
  readonly zeroRange?: readonly [number, number];
  /** Of a module with bf16 scales: whether each of them is an f16 number, too. */
  readonly halfScales?: boolean;
  /** Of a module with g_idx: whether all its groups have the same number of input features. */
  readonly evenGroups?: boolean;
  /** How the ranks of tensor parallelism share it; absent without ranks. */
  readonly ranks?: Split;
}

/** A module that the target takes: its tensors, and what was done to make it fit. */
export interface Taken {
  readonly action: 'ok' | 'pad';
  /** As artifacts name it (layouts/). */
  readonly layout: string;
  /** PackedModule.packing. */
  readonly packing?: 'whole';
  /** PackedModule.inputMost. */
  readonly inputMost?: number;
  /** [N, K] that the layout holds, of one rank's part where there are `ranks`. */
  readonly padded: readonly [number, number];
  /** The ranks that share it: by output features (n) or input features (k). */
  readonly ranks?: { readonly count: number; readonly split: 'n' | 'k' };
  readonly tensors: readonly TensorSpec[];
  readonly notes: readonly string[];
}

/** A module that the target cannot take, and the form in which it goes along instead. */
export interface Fallback {
  readonly action: 'fallback';
  /** carried: its canonical tensors; dense: MODULE.weight in the dtype of the source, so that loaders read it. */
  readonly form: 'carried' | 'dense';
  /** A clause: why. */
  readonly reason: string;
  /** One imperative sentence: what would make it fit. */
  readonly remedy: string;
}

export type Decision = Taken | Fallback;

/** A module on its way into the artifact. */
export interface PackJob {
  readonly rt: PackRuntime;
  readonly checkpoint: CanonicalCheckpoint;
  readonly name: string;
  readonly module: CanonicalModule;
  readonly plan: Taken;
  readonly facts: ModuleFacts;
}

/** What a target says about the whole artifact, once every module is decided. */
export interface TargetConfig {
  /** config.json's quantization_config. */
  readonly quantization: Record<string, unknown>;
  /** Further files, by name. */
  readonly files: Readonly<Record<string, unknown>>;
}

/** Everything that config() may look at. */
export interface PackedModel {
  readonly checkpoint: CanonicalCheckpoint;
  readonly decisions: ReadonlyMap<string, Decision>;
  /** Linears (NAME of a two-dimensional NAME.weight, embeddings aside) that are not quantized in the checkpoint. */
  readonly plainLinears: readonly string[];
  /** 1 without tensor parallelism. */
  readonly ranks: number;
  readonly roles: ModelRoles;
}

/** Where a canonical checkpoint can be packed to: one file each in targets/. */
export interface PackTarget {
  readonly name: string;
  /** One line for lists of targets. */
  readonly describe: string;
  /** Whether its readers find modules by the names of the checkpoint: an expert is then a module of its own, or there is no place for it. */
  readonly byName?: boolean;
  /** Commands that serve its artifacts, DIR standing for one; default: lpq generate. */
  readonly serve?: readonly string[];
  /** Whether it can give each rank its part of a module. */
  readonly tensorParallel?: boolean;
  /** Whether what linears read instead of their input (W4Ax) goes along; else weights are packed alone, for 16 bits. */
  readonly activations?: boolean;
  /** The tensor in which its readers look for an FP8 scale of the keys or values of an attention; absent: they read none. */
  kvScale?(attention: string, side: 'k' | 'v'): TensorSpec;
  /** What programs that read its artifacts do otherwise than these say. */
  readonly limits?: readonly ReaderLimit[];
  /** Of a target that bind() makes: why a module that is not quantized yet will not fit. */
  preview?(module: CanonicalModule, facts: ModuleFacts): NoForm | undefined;
  /** Decides by the manifest alone; nothing is read or written. */
  plan(name: string, module: CanonicalModule, facts: ModuleFacts): Decision;
  /** The target to use instead once all modules are known, with a sentence that says why if it is another. */
  resolve?(modules: ReadonlyMap<string, { module: CanonicalModule; facts: ModuleFacts }>): Redirect | undefined;
  /** The tensors that the plan listed, computed. The caller disposes of them. Throws LPQ_PACK naming the module. */
  pack(job: PackJob): Promise<Map<string, Tensor>>;
  config(model: PackedModel): TargetConfig;
  /** Whether it can take weights from the checkpoint that was quantized (PackRequest.source). */
  readonly readsSource?: boolean;
  /** The target for one checkpoint, of a format whose names and tensors depend on the whole model. Throws LPQ_TARGET. */
  bind?(checkpoint: CanonicalCheckpoint): PackTarget;
  /** Writes the whole output, of a format that is no safetensors; packCheckpoint hands over to it. */
  write?(request: PackRequest, plan: PackPlan): Promise<PackReport>;
}

export interface Redirect {
  readonly target: PackTarget;
  /** None where the target only settles what belongs together. */
  readonly note?: string;
}
