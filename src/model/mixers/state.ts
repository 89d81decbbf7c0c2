import type { NativeRuntime } from '../../../native/binding.js';
import type { Past } from '../../../native/recurrent-ops.js';
import { LpqError } from '../../core/error.js';
import type { BlockState } from '../program.js';

/** What a recurrence of a block goes on from: the sequences of the batch, and the state [slots, ...shape] under `name` where steps keep one. */
export function pastOf({ batch, recall }: BlockState, name: string, shape: readonly number[]): Past {
  return recall ? recall(name, shape) : { starts: batch.starts };
}

/** Recurrent layers and sparse attention run on the CPU only. Throws LPQ_DEVICE, naming a linear of the block. */
export function requireHost(rt: NativeRuntime, name: string, what = 'recurrent layer'): void {
  if (rt.device === 'cpu') return;
  throw new LpqError('LPQ_DEVICE', `there is no kernel for the ${what} that '${name}' is of`, {
    got: rt.device,
    expected: 'cpu',
    hint: 'Use --device cpu.',
  });
}
