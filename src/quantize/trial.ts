import type { OutputDirectory } from '../../formats/directory/output-directory.js';
import type { NativeRuntime } from '../../native/binding.js';
import { tell } from '../core/activity.js';
import { type QuantizeRequest, quantizeCheckpoint } from './run.js';

/** When parts of a trial had ended, in seconds from its beginning. */
export interface TrialTimes {
  /** Which blocks it was to take, by their places in the model. */
  readonly blocks: readonly number[];
  /** When blocks had ended, the n-th of `blocks` by n; fewer where the trial was stopped. */
  readonly ends: readonly (number | undefined)[];
  /** When the head had ended, where it is quantized, too. */
  readonly head?: number;
  /** When each step on the whole model began. */
  readonly steps: readonly number[];
  /** When the output was complete; absent where the trial was stopped. */
  readonly end?: number;
}

/** Ends a trial that has seen enough. */
class Enough extends Error {}

/** After two blocks a trial goes on for so long at most, unless it is to come to the model's end. */
const ENOUGH_SECONDS = 8;

/**
 * Quantizes some blocks of a model as quantizeCheckpoint() does, into `request.output`, which the caller removes. `whole`: comes to the
 * model's end however long blocks take. `now`: seconds from the trial's beginning. Throws what quantizing throws, and what `check` throws.
 */
export async function runTrial(
  rts: readonly NativeRuntime[],
  request: QuantizeRequest & { readonly blocks: readonly number[] },
  { whole, now, check }: { readonly whole: boolean; readonly now: () => number; readonly check: () => void },
  register: (output: OutputDirectory) => void = () => {},
): Promise<TrialTimes> {
  const { blocks, quantizer } = request;
  const ends: (number | undefined)[] = [];
  const steps: number[] = [];
  let [current, head] = [0, undefined as number | undefined];
  const began = now();
  const enough = () => ends.length >= 2 && !whole && now() - began > ENOUGH_SECONDS;
  try {
    await quantizeCheckpoint(
      rts,
      request,
      {
        onStage: (block, _, stage) => {
          check();
          current = block;
          if (enough()) throw new Enough();
          tell(`quantizing block ${(blocks[block] ?? 0) + 1} to time it, ${stage}`);
        },
        onModule: check,
        onModelStep: (step, of) => {
          check();
          steps.push(now());
          tell('training scales to time it', step, of);
        },
        onSpan: (span) => {
          if (span !== 'block' || !quantizer.statistics) return;
          // The head stands where the last block does.
          if (ends[current] === undefined) ends[current] = now();
          else head = now();
        },
        // Methods without calibration only queue the modules of a block.
        onBlock: ({ block }) => {
          if (quantizer.statistics) return;
          if (block === 'head') head = now();
          else ends[block] = now();
        },
      },
      register,
    );
  } catch (error) {
    if (!(error instanceof Enough)) throw error;
    return { blocks, ends, steps };
  }
  return { blocks, ends, steps, ...(head !== undefined && { head }), end: now() };
}
