import type { NativeRuntime } from '../../native/binding.js';
import type { Room } from '../calibrate/room.js';
import type { Streams } from '../calibrate/statistics.js';
import type { Block, BlockWeights, ModelGraph, Stage } from '../model/program.js';
import type { WeightSource } from '../model/source.js';
import { disposeWeights, loadWeights } from '../model/weights.js';
import { calibratedStreams, disposeStreams, headStage } from './calibrated.js';
import { blockMemory, roomFor } from './memory-plan.js';

/** One device in front of a stage: its share of the calibration data, the block's weights, and what activations may keep there. */
export interface PassLane {
  readonly rt: NativeRuntime;
  readonly streams: Streams;
  readonly weights: BlockWeights;
  readonly room: Room;
}

/** The head as a block of its own, whose weights are those outside the blocks. */
export function headBlock(graph: ModelGraph): Block {
  return { index: graph.blocks.length, tensors: new Map(), stages: [headStage(graph)] };
}

/**
 * Takes calibration sequences through the unquantized model once. `walk`: blocks, and headBlock(), in the order of the pass. `onStage` visits
 * every batch of every lane's stream once, in front of each stage. Throws what reading and computing throw, and what `onStage` throws.
 */
export async function passModel(
  rts: readonly NativeRuntime[],
  sequences: readonly Int32Array[],
  source: WeightSource,
  graph: ModelGraph,
  walk: readonly Block[],
  onStage: (block: Block, stage: Stage, lanes: readonly PassLane[]) => Promise<void>,
): Promise<void> {
  const load = (names: Iterable<string>) => {
    const list = [...names];
    return Promise.all(rts.map((rt) => loadWeights(rt, source, list, graph.transposed)));
  };
  const outer = await load(graph.outer.keys());
  let streams: Streams[] = [];
  let here: BlockWeights[] = [];
  // The streams pass a block's last stage in the first sweep of the next.
  let behind: BlockWeights[] = [];
  try {
    streams = await calibratedStreams(rts, graph, outer, sequences);
    for (const block of walk) {
      const head = block.index === graph.blocks.length;
      here = head ? [] : await load(block.tensors.keys());
      const memory = blockMemory(block, graph.stream, 1);
      for (const [index, stage] of block.stages.entries()) {
        const lanes = rts.map((rt, i) => ({
          rt,
          streams: streams[i] as Streams,
          weights: (head ? outer[i] : here[i]) as BlockWeights,
          room: roomFor(rt, memory, block, index, 2 * memory.weights),
        }));
        await onStage(block, stage, lanes);
        if (index === 0) {
          for (const weights of behind) disposeWeights(weights);
          behind = [];
        }
        if (!head) for (const { streams, weights } of lanes) streams.quantized.follow({ stage, weights });
      }
      behind = here;
      here = [];
    }
  } finally {
    for (const weights of [...behind, ...here, ...outer]) disposeWeights(weights);
    disposeStreams(streams);
  }
}
