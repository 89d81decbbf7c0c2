import type { SourceCheckpoint } from '../../formats/canonical/source.js';
import type { NativeRuntime } from '../../native/binding.js';
import type { Calibration } from '../calibrate/text.js';
import type { ModelPlan } from '../model/plan.js';
import type { ModelGraph } from '../model/program.js';
import type { MethodOption, OptionValues } from './option.js';
import type { ModulePlan } from './plan.js';
import type { Quantizer } from './quantizer.js';
import type { QuantizeRequest } from './run.js';

/**
 * A method of quantization, as everything outside its room knows it: the command line, recipes, schemas and the manual page
 * are made from its list (src/cli/quantize/methods.ts). Descriptors are read by every command, so what they compute with is
 * imported when it is called.
 */
export interface Method {
  readonly name: string;
  /** What it is, behind its name in the help of --method; none for those that the name says it all. */
  readonly summary?: string;
  /**
   * What it looks at: weights alone; second moments of inputs too, which may have been saved (--stats); or what a forward
   * pass computes. A function where settings decide; none of them: the least.
   */
  readonly needs: Needs | ((settings: OptionValues) => Needs);
  readonly options: readonly MethodOption[];
  /** Computes on the CPU only, always or where settings have what is returned, an option with its value. */
  readonly cpuOnly?: true | ((settings: OptionValues) => string | undefined);
  /**
   * Linears read codes of this many channels that share a scale, which the weights have as their group, too; prepare() rewrites
   * the whole model for it.
   */
  readonly codes?: { readonly block: number };
  /** The option by which it goes on with the whole model at the end, for which it reads all of the source again and again. */
  wholeModel?(settings: OptionValues): string | undefined;
  /** Whether settings go on from codes, which may be those of an earlier checkpoint (begun.ts). */
  continues?(settings: OptionValues): boolean;
  /** How many calibration sequences it wants beyond the samples, as far as the text has them. */
  further?(settings: OptionValues): number;
  /** Number format of the CPU's products (NativeRuntime.products) until weights are solved; default f32. */
  products?(settings: OptionValues): NativeRuntime['products'];
  /** Throws LPQ_USAGE for settings that contradict each other. */
  check?(settings: OptionValues): void;
  /** Throws LPQ_USAGE, LPQ_GROUP_SIZE for what it cannot do to this model, before anything is computed. */
  checkPlan?(source: SourceCheckpoint, settings: OptionValues, plan: ModulePlan): Promise<void>;
  /** What solves: a feed, or a whole block (quantizer.ts). */
  quantizer(settings: OptionValues): Promise<Quantizer>;
  /** What settings take beside what quantizer() does with feeds; absent: nothing. */
  extraNeeds?(graph: ModelGraph, plan: ModelPlan, modules: ModulePlan, settings: OptionValues): Promise<ExtraNeeds>;
  /** How a trial tells the time of the steps on the whole model (wholeModel); absent, or undefined: there are none. */
  wholeTrial?(settings: OptionValues): Promise<WholeTrial | undefined>;
  /** What is decided about the whole model before weights are solved, as a part of the request. */
  prepare?(work: Preparation): Promise<Partial<QuantizeRequest>>;
}

export type Needs = 'weights' | 'statistics' | 'activations';

/** What a method looks at with these settings. */
export function needsOf({ needs }: Pick<Method, 'needs'>, settings: OptionValues = {}): Needs {
  return typeof needs === 'function' ? needs(settings) : needs;
}

/** Floating-point operations of products; bytes beside the largest block while it is solved, and of what comes after all blocks. */
export interface ExtraNeeds {
  readonly operations: number;
  readonly beside: number;
  readonly after: number;
}

/** Seconds of a trial's steps on the whole model: before the first, of each, and of what follows the last. */
export interface StepTimes {
  readonly before: number;
  readonly each: readonly number[];
  readonly after: number;
}

/** A trial of the steps on the whole model. */
export interface WholeTrial {
  /** With few steps. */
  readonly settings: OptionValues;
  /** What the time of all steps grows with, of a model of these blocks. */
  size(graph: ModelGraph, plan: ModelPlan, rt: NativeRuntime): number;
  /** Of all steps on the model that the trial has. */
  seconds(times: StepTimes, graph: ModelGraph, plan: ModelPlan, rt: NativeRuntime): number;
}

/** What a method prepares with. */
export interface Preparation {
  readonly rt: NativeRuntime;
  readonly source: SourceCheckpoint;
  readonly request: Pick<QuantizeRequest, 'scheme' | 'rules' | 'lmHead' | 'mtp'>;
  readonly settings: OptionValues;
  readonly calibration: Calibration;
  /** What quantizer() made. */
  readonly quantizer: Quantizer;
  readonly events: PreparationEvents;
}

/** Whom it tells; check() throws where the run is to stop. */
export interface PreparationEvents {
  check(): void;
  task(name: string, total: number): { update(done: number, detail: string): void; end(): void };
  event(name: string, data: object, line: string): void;
  warn(line: string, data: object): void;
}
