import { type NativeRuntime, type Tensor, uploadTyped } from '../../native/binding.js';
import { LpqError } from '../core/error.js';
import type { Batch } from './program.js';

/**
 * Tokens of a batch unless a caller knows better. More make matrices no faster, but push activations out of the caches
 * (tiny-llama's MLP takes 6 MB at 2048); fewer leave experts of a large mixture with too few rows each.
 */
export const BATCH_TOKENS = 2048;

/** A ragged batch with its tokens, on a device and as they were given. */
export interface TokenBatch extends Batch {
  /** I32 [T]. */
  readonly ids: Tensor;
  readonly hostIds: Int32Array;
  readonly hostStarts: Int32Array;
}

/** One batch of whole sequences, one after another; each starts at position 0. Empty sequences take no place. */
export function makeBatch(rt: NativeRuntime, sequences: readonly Int32Array[]): TokenBatch {
  const full = sequences.filter((sequence) => sequence.length > 0);
  const tokens = full.reduce((sum, sequence) => sum + sequence.length, 0);
  const ids = new Int32Array(tokens);
  const positions = new Int32Array(tokens);
  const starts = new Int32Array(full.length + 1);
  let at = 0;
  let longest = 0;
  full.forEach((sequence, s) => {
    ids.set(sequence, at);
    for (let i = 0; i < sequence.length; i++) positions[at + i] = i;
    at += sequence.length;
    starts[s + 1] = at;
    longest = Math.max(longest, sequence.length);
  });
  return {
    tokens,
    longest,
    lengths: full.map((sequence) => sequence.length),
    ids: uploadTyped(rt, 'i32', [tokens], ids),
    positions: uploadTyped(rt, 'i32', [tokens], positions),
    starts: uploadTyped(rt, 'i32', [starts.length], starts),
    hostIds: ids,
    hostStarts: starts,
  };
}

/** Batches of at most `maxTokens` tokens, in order; a longer sequence is a batch of its own, never split. */
export function batchSequences(rt: NativeRuntime, sequences: readonly Int32Array[], maxTokens: number): TokenBatch[] {
  const batches: TokenBatch[] = [];
  let open: Int32Array[] = [];
  let tokens = 0;
  for (const sequence of sequences) {
    if (sequence.length === 0) continue;
    if (open.length > 0 && tokens + sequence.length > maxTokens) {
      batches.push(makeBatch(rt, open));
      open = [];
      tokens = 0;
    }
    open.push(sequence);
    tokens += sequence.length;
  }
  if (open.length > 0) batches.push(makeBatch(rt, open));
  return batches;
}

export function disposeBatch(batch: TokenBatch): void {
  for (const tensor of [batch.ids, batch.positions, batch.starts]) tensor.dispose();
}

/** Throws LPQ_CONFIG when a token lies outside the vocabulary: the tokenizer or the ids belong to another model. */
export function checkIds(ids: Int32Array, vocab: number, from: string): void {
  for (let i = 0; i < ids.length; i++) {
    const id = ids[i] as number;
    if (id >= 0 && id < vocab) continue;
    throw new LpqError('LPQ_CONFIG', `token ${i} of ${from} is not in the model's vocabulary`, {
      got: id,
      expected: `0 to ${vocab - 1} (vocab_size ${vocab})`,
      hint: 'Use the tokenizer files that belong to this model.',
    });
  }
}
