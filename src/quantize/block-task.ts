import type { NativeRuntime } from '../../native/binding.js';
import type { BlockPlan } from '../model/plan.js';
import type { Block, BlockState, BlockWeights } from '../model/program.js';
import type { QuantizedModule } from './result.js';
import type { QuantScheme } from './scheme.js';

/** The calibration data as it stands somewhere in the model: a batch at a time, in any order, as often as wanted. */
export interface Batches {
  readonly count: number;
  /** h f32 [T, C] and the sequences of its rows. The state is the caller's, for stages to consume or to dispose of (disposeState). */
  state(batch: number): BlockState;
}

/** One device's part of a block's data; sums over all of it are the method's to make. */
export interface BlockLane {
  readonly rt: NativeRuntime;
  /** The unquantized weights by full name. A trial runs with a copy of the map that has other entries. */
  readonly weights: BlockWeights;
  /** What linears of the quantized model read instead of their inputs, by name. */
  readonly forms?: BlockWeights['activations'];
  /** What the quantized model computes up to the block. */
  readonly inputs: Batches;
  /**
   * What the unquantized block makes, batch by batch: of the inputs of the unquantized model where the quantizer asks for the
   * original, else of `inputs`.
   */
  readonly outputs: Batches;
}

/**
 * A block to solve. runBlock() (src/model/forward.ts) takes a state through it, capture() of its stages gives what linears read,
 * and `plan` says in data what it computes, for whoever needs its derivatives.
 */
export interface BlockTask {
  readonly block: Block;
  readonly plan: BlockPlan;
  /** Of the linears to solve, by name. Linears of one run of siblingRuns() share a second level of scales. */
  readonly schemes: ReadonlyMap<string, QuantScheme>;
  /** One a device; the first has at least one batch. */
  readonly lanes: readonly BlockLane[];
  /**
   * What feed() makes of the linears, stage by stage, in the CPU's memory and the runner's to dispose of; empty where the quantizer does
   * not ask for it (feedsFirst).
   */
  readonly start: ReadonlyMap<string, QuantizedModule>;
  /** To be called now and then: throws where the run is to stop. `doing`: what progress calls the block's work. */
  check(doing?: string): void;
  /** Tells the user. */
  warn(line: string, data: object): void;
}
