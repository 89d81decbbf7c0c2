import type { Shard } from '../../formats/shards/shard.js';
import type { ModelGraph } from '../model/program.js';
import { linearsOf } from './linears.js';

/** Which modules and carried tensors a process makes; `index`: of a carried tensor among all of them. */
export interface ModelPart {
  module(name: string): boolean;
  carried(name: string, index: number): boolean;
}

/**
 * Those of a shard: whole blocks, for siblings may share a second level of scales. Without a shard all; of a trial of some `blocks`, which
 * are all that the graph has, what is carried from outside of them is left out.
 */
export function modelPart(graph: ModelGraph, shard: Shard | undefined, blocks?: readonly number[]): ModelPart {
  if (blocks) return { module: () => true, carried: (name) => graph.blocks.some(({ tensors }) => tensors.has(name)) };
  if (!shard) return { module: () => true, carried: () => true };
  const { index, count } = shard;
  const blockOf = new Map(
    graph.blocks.flatMap((block) => linearsOf(block).map(({ name }) => [name, block.index] as const)),
  );
  const tensors = new Map(
    graph.blocks.flatMap((block) => [...block.tensors.keys()].map((name) => [name, block.index] as const)),
  );
  return {
    module: (name) => (blockOf.get(name) ?? graph.blocks.length) % count === index,
    // Beside the modules of its block: one part then reads few shards.
    carried: (name, at) => (tensors.get(name) ?? at) % count === index,
  };
}
