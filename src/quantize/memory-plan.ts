import type { NativeRuntime } from '../../native/binding.js';
import { Room } from '../calibrate/room.js';
import type { Block, Feed, Stage } from '../model/program.js';

/** Tokens that flow through the model together on a device: enough to keep GEMMs efficient. */
export const DEVICE_BATCH_TOKENS = 8192;
/** What no formula below knows: handles, workspaces, rotary tables, holes between blocks of memory. */
const SLACK_BYTES = 0.75 * 2 ** 30;
/** Experts that a token is sent to, at most, as far as temporaries are concerned. */
const ROUTED = 8;

/** What a block takes on a device while one of its stages is worked on, in bytes; estimates, on the safe side. */
export interface BlockMemory {
  /** Source weights of a block, and as many again once they are dequantized. */
  readonly weights: number;
  /** Second moments of all feeds of the stage. */
  statistics(stage: Stage): number;
  /** Factors, targets and levels of the largest feed, beside the moments. */
  solver(stage: Stage): number;
  /** What a method takes that solves the block at once. */
  readonly whole: number;
  /** Activations of the batches in flight. */
  temporaries(stage: Stage): number;
}

/**
 * `streams`: 2 with the original model's beside the quantized one's; `whole`: what a method takes that solves the block at once; `sums`: sets of
 * second moments, of all sections and of one on its way (calibrate/statistics.ts).
 */
export function blockMemory(block: Block, hidden: number, streams: number, whole = 0, sums = 2): BlockMemory {
  const weights = [...block.tensors.values()].reduce((sum, shape) => sum + 2 * shape.reduce((a, b) => a * b, 1), 0);
  const k = (feed: Feed) => feed.linears[0]?.k ?? 0;
  const rows = (feed: Feed) => feed.linears.reduce((sum, { n }) => sum + n, 0);
  const routed = (stage: Stage) => stage.feeds.some(({ linears }) => linears[0]?.expert !== undefined);
  return {
    weights,
    whole,
    statistics: (stage) =>
      stage.feeds.reduce((sum, feed) => sum + sums * 4 * k(feed) ** 2 * (streams > 1 && !routed(stage) ? 2 : 1), 0),
    // U and M in f32; then either the f64 factor with half a triangle of room, or T, level, errors and split operands.
    solver: (stage) =>
      Math.max(
        0,
        ...stage.feeds.map((feed) => 8 * k(feed) ** 2 + Math.max(10 * k(feed) ** 2, 24 * rows(feed) * k(feed))),
      ),
    temporaries: (stage) => {
      const wide = Math.max(0, ...stage.feeds.map((feed) => rows(feed) + k(feed)));
      const perToken = 8 * hidden + 3 * wide * (routed(stage) ? ROUTED : 1) + (stage.temporaryBytes ?? 0);
      return 2 * streams * DEVICE_BATCH_TOKENS * perToken;
    },
  };
}

/**
 * What activations may keep on the device from the sweep before stage `index` until the next sweep has visited them:
 * beside the solver first, then beside the next stage's moments and temporaries. Without bound on the CPU.
 */
export function roomFor(rt: NativeRuntime, memory: BlockMemory, block: Block, index: number, spare: number): Room {
  const limit = rt.memory()?.limit;
  if (limit === undefined) return new Room(Number.POSITIVE_INFINITY);
  const stage = block.stages[index] as Stage;
  const next = block.stages[(index + 1) % block.stages.length] as Stage;
  const solving = memory.statistics(stage) + memory.solver(stage);
  const sweeping = Math.max(...[stage, next].map((each) => memory.statistics(each) + memory.temporaries(each)));
  return new Room(limit - spare - Math.max(solving, sweeping, memory.whole) - SLACK_BYTES);
}

/** Whether the next block's weights may come while this one is worked on. */
export function mayPrefetch(rt: NativeRuntime, memory: BlockMemory, block: Block): boolean {
  const limit = rt.memory()?.limit;
  if (limit === undefined) return true;
  const most = Math.max(memory.whole, ...block.stages.map((stage) => memory.statistics(stage) + memory.solver(stage)));
  return 3 * memory.weights + most + SLACK_BYTES <= limit;
}
