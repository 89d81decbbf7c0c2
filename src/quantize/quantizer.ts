import type { NativeRuntime, Tensor } from '../../native/binding.js';
import type { FeedStatistics } from '../calibrate/statistics.js';
import type { QuantizedModule } from './result.js';
import type { QuantScheme } from './scheme.js';

/** Quantizes the linears that share one input. */
export interface FeedQuantizer {
  /** W [N,K] f32, f16 or bf16; `name` is for messages. The caller disposes of the result's tensors. */
  solve(name: string, weight: Tensor, scheme: QuantScheme): Promise<QuantizedModule>;
  dispose(): void;
}

/** A method: what it needs from calibration, and how it turns weights into codes. */
export interface Quantizer {
  readonly method: string;
  /** false: no calibration data, no forward pass. */
  readonly statistics: boolean;
  /** Also wants D, hence a second forward pass of the unquantized model. */
  readonly original: boolean;
  /** Recorded in the checkpoint's provenance. */
  readonly options: Readonly<Record<string, unknown>>;
  /** On the device where the statistics are. Throws where the method needs some and has none. */
  feed(rt: NativeRuntime, statistics: FeedStatistics | undefined): FeedQuantizer;
}
