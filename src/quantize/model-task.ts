import type { NativeRuntime, Tensor } from '../../native/binding.js';
import type { ModelPlan } from '../model/plan.js';
import type { ModelGraph } from '../model/program.js';
import type { ActivationForm, WeightSource } from '../model/source.js';
import type { ModelState } from './model-state.js';
import type { QuantizedModule } from './result.js';

/** A model whose modules are all quantized, for a method that goes on with it as a whole (Quantizer.solveModel). */
export interface ModelTask {
  readonly rt: NativeRuntime;
  readonly graph: ModelGraph;
  readonly plan: ModelPlan;
  /** The unquantized weights. */
  readonly source: WeightSource;
  /** By name, as they stand in the checkpoint; the runner's to dispose of. */
  readonly modules: ReadonlyMap<string, QuantizedModule>;
  /** What their linears read instead of their inputs, by name. */
  readonly forms?: ReadonlyMap<string, ActivationForm>;
  /** Calibration sequences, those that the modules were solved for first, then fresh ones. */
  readonly sequences: readonly Int32Array[];
  /** How many of them the modules have seen. */
  readonly seen: number;
  /** Where steps stand, kept for a run that is stopped. */
  readonly state?: ModelState;
  /** To be called before each of `of` steps: throws where the run is to stop. */
  check(step: number, of: number): void;
}

/** What it makes of the model. */
export interface SolvedModel {
  /** New scales of modules, by name, in the dtype and shape of the old ones; the receiver disposes of them. */
  readonly scales: ReadonlyMap<string, Tensor>;
  /** New weights of norms, by full name, of the shape of the old ones; the receiver disposes of them. */
  readonly norms: ReadonlyMap<string, Tensor>;
  readonly training: ScaleTraining;
}

/** How scales were trained on the model's end; what reports tell of it. */
export interface ScaleTraining {
  readonly steps: number;
  /** The step that was kept; 0: the scales as they were. */
  readonly kept: number;
  /** Tokens that steps were taken on, and those held out, which choose the step. */
  readonly tokens: number;
  readonly heldOut: number;
  /** How many norms were trained, too. */
  readonly norms?: number;
  /** KL to the unquantized model, nats a token: of the held-out tokens after a step, and the mean of the steps since the look before. */
  readonly curve: readonly { readonly step: number; readonly loss: number; readonly training: number | null }[];
}
