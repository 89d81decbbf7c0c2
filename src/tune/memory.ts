import type { Block, LinearRef } from '../model/program.js';
import { madeFloats } from './scales/estimate.js';

/**
 * Bytes that training a block takes at its fullest: of each of its `linears` that is trained the weight, its gradient, its target and two
 * sets of codes; directions and errors of the largest; what two passes of so many tokens make, with their gradients, for the next is enqueued
 * while one runs; of each feed the moments while they are summed, and two matrices made of them. Descents run side by side: errors of all
 * and the matrix of each feed, in 16 bits.
 */
export function tuningBytes(block: Block, linears: readonly LinearRef[], tokens: number): number {
  const sum = (values: readonly number[]) => values.reduce((a, b) => a + b, 0);
  const weights = linears.map(({ n, k }) => n * k);
  const feeds = block.stages.flatMap((stage) => stage.feeds).map((feed) => feed.linears[0]?.k ?? 0);
  const floats = 5 * sum(weights) + 3 * Math.max(0, ...weights) + 2 * madeFloats(block) * tokens;
  return 4 * floats + 2 * sum(weights) + 18 * sum(feeds.map((k) => k * k));
}
