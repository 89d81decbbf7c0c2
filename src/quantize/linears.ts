import type { Block, LinearRef } from '../model/program.js';

/** The linears of a block, in the order of the model. */
export function linearsOf({ stages }: Pick<Block, 'stages'>): LinearRef[] {
  return stages.flatMap(({ feeds }) => feeds.flatMap(({ linears }) => linears));
}
