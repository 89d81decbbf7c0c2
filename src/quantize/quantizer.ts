import type { NativeRuntime, Tensor } from '../../native/binding.js';
import type { FeedStatistics } from '../calibrate/statistics.js';
import type { Block } from '../model/program.js';
import type { BlockTask } from './block-task.js';
import type { ModelTask, SolvedModel } from './model-task.js';
import type { QuantizedModule } from './result.js';
import type { QuantScheme } from './scheme.js';

/** Quantizes the linears that share one input. */
export interface FeedQuantizer {
  /** W [N,K] f32, f16 or bf16; `name` is for messages. The caller disposes of the result's tensors. */
  solve(name: string, weight: Tensor, scheme: QuantScheme): Promise<QuantizedModule>;
  dispose(): void;
}

/** A method at work: what it needs from calibration, and how it turns weights into codes. */
export interface Quantizer {
  readonly method: string;
  /** false: no calibration data, no forward pass. */
  readonly statistics: boolean;
  /** Also wants what the unquantized model computes, hence a second forward pass: D of every feed; for solveBlock() all batches. */
  readonly original: boolean;
  /** The least share of the tokens that the statistics of every expert are of; absent: those that are sent to it. */
  readonly coverage?: number;
  /** Bytes that solveBlock() takes of a device beside the block's weights and the data; absent: what feed() takes. */
  blockBytes?(block: Block): number;
  /** Tokens of a batch on a device, where the method takes steps on batches. */
  readonly batchTokens?: number;
  /** Recorded in the checkpoint's provenance. */
  readonly options: Readonly<Record<string, unknown>>;
  /**
   * On the device where the statistics are. `rows`: of all linears of the feed, parts of which other devices may solve; absent: each
   * linear is solved as if alone. Throws where the method needs statistics and has none.
   */
  feed(rt: NativeRuntime, statistics: FeedStatistics | undefined, rows?: number): FeedQuantizer;
  /** solveBlock() begins with what feed() makes of the block (BlockTask.start). */
  readonly feedsFirst?: true;
  /**
   * Solves a whole block at once by its inputs and outputs; feed() is then for lm_head alone. Returns a module for each
   * linear that the task has a scheme of, on `lanes[0].rt`; the caller disposes of their tensors.
   */
  solveBlock?(task: BlockTask): Promise<ReadonlyMap<string, QuantizedModule>>;
  /** Goes on with the whole model once all modules are solved. */
  solveModel?(task: ModelTask): Promise<SolvedModel>;
}
