import type { NativeRuntime } from '../../native/binding.js';
import { tell } from '../core/activity.js';
import { bandLinears } from '../model/banded.js';
import { loadOuter } from '../model/forward.js';
import { openModel } from '../model/graph.js';
import { settlePacked } from '../model/packed.js';
import type { Block, BlockWeights, ModelGraph } from '../model/program.js';
import { joinSiblings } from '../model/siblings.js';
import type { WeightSource } from '../model/source.js';
import { stackExperts } from '../model/stacked-experts.js';
import { disposeWeights, loadWeights } from '../model/weights.js';

/** A model whose weights all stay on the runtime's device. */
export interface ResidentModel {
  readonly source: WeightSource;
  readonly graph: ModelGraph;
  readonly outer: BlockWeights;
  /** By block. */
  readonly blocks: readonly BlockWeights[];
}

/**
 * Reads every weight; the caller disposes of the model with disposeResident. `join`: linears that read one input become one
 * (model/siblings.ts), and the experts of a stage (model/stacked-experts.ts). On the CPU weights of 16 bits are held as products of few rows read them (model/banded.ts). Throws what
 * openModel and the source throw.
 */
export async function loadResident(
  rt: NativeRuntime,
  source: WeightSource,
  onBlock: (done: number, total: number) => void = () => {},
  join = true,
): Promise<ResidentModel> {
  const graph = openModel(source);
  const blocks: BlockWeights[] = [];
  const outer = await loadOuter(rt, source, graph);
  try {
    await settlePacked(rt, outer);
    bandLinears(rt, outer, [graph.head]);
    for (const block of graph.blocks) {
      const weights = await loadWeights(rt, source, block.tensors.keys(), graph.transposed);
      blocks.push(weights);
      if (join) {
        await joinSiblings(rt, block, weights);
        stackExperts(rt, block, weights);
      }
      await settlePacked(rt, weights);
      bandLinears(rt, weights, linearsOf(block, weights));
      tell('loading block', blocks.length, graph.blocks.length);
      // What is being copied to a device is held on the host until it has arrived.
      await rt.sync();
      onBlock(blocks.length, graph.blocks.length);
    }
  } catch (error) {
    for (const weights of [outer, ...blocks]) disposeWeights(weights);
    throw error;
  }
  return { source, graph, outer, blocks };
}

function linearsOf({ stages }: Block, { joined }: BlockWeights): readonly { readonly name: string }[] {
  return [...stages.flatMap(({ feeds }) => feeds.flatMap(({ linears }) => linears)), ...(joined?.values() ?? [])];
}

export function disposeResident({ outer, blocks }: ResidentModel): void {
  for (const weights of [outer, ...blocks]) disposeWeights(weights);
}
