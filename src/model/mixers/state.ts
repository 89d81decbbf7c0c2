import type { Past } from '../../../native/recurrent-ops.js';
import type { BlockState } from '../program.js';

/** What a recurrence of a block goes on from: the sequences of the batch, and the state [slots, ...shape] under `name` where steps keep one. */
export function pastOf({ batch, recall }: BlockState, name: string, shape: readonly number[]): Past {
  return recall ? recall(name, shape) : { starts: batch.starts };
}
