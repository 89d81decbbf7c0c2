import { besideOf, makeBeside } from '../../native/beside.js';
import type { NativeRuntime, Tensor } from '../../native/binding.js';
import type { Block, BlockWeights, Feed, ModelGraph } from '../model/program.js';
import type { Lane, Replacement, Share } from './lanes.js';
import { blockMemory } from './memory-plan.js';

/** Streams that feeds of experts are solved on, the device's own among them. */
const STREAMS = 4;
/** What all of them but the device's own may take of its memory. */
const MEMORY_SHARE = 1 / 8;
/** Of a stream: workspaces of libraries, holes between blocks of memory. */
const SLACK_BYTES = 0.25 * 2 ** 30;

const isExpert = ({ linears }: Feed): boolean => linears[0]?.expert !== undefined;

/**
 * Streams for the feeds of experts: one of them leaves most of a device idle, and the device waits for the host between two. None for
 * models without experts, on the CPU, and where there is too little memory.
 */
export function makeSolvingStreams(rts: readonly NativeRuntime[], graph: ModelGraph): void {
  const bytes = Math.max(0, ...graph.blocks.map((block) => bytesFor(block, graph.stream)));
  if (bytes === 0) return;
  for (const rt of rts) {
    const limit = rt.memory()?.limit ?? 0;
    makeBeside(rt, Math.min(STREAMS - 1, Math.floor((limit * MEMORY_SHARE) / bytes)), bytes);
  }
}

/** What a stream takes at most: moments, solver and weights of the largest feed of a stage with experts. */
function bytesFor(block: Block, hidden: number): number {
  const memory = blockMemory(block, hidden, 1);
  const stages = block.stages.filter(({ feeds }) => feeds.some(isExpert));
  const own = (feed: Feed) => {
    const k = feed.linears[0]?.k ?? 0;
    return 4 * k * k + 4 * k * feed.linears.reduce((sum, { n }) => sum + n, 0);
  };
  return Math.max(0, ...stages.map((stage) => memory.solver(stage) + Math.max(...stage.feeds.map(own)) + SLACK_BYTES));
}

/** Who solves feeds: a lane, on its device's own stream or on one beside it. */
export interface Worker {
  readonly lane: Lane;
  readonly rt: NativeRuntime;
}

/** The lanes; with the streams beside them where there is a feed of an expert for each. */
export function workersOf(lanes: readonly Lane[], feeds: readonly Feed[]): Worker[] {
  const all = lanes.flatMap((lane) => [lane.rt, ...besideOf(lane.rt)].map((rt) => ({ lane, rt })));
  return feeds.filter(isExpert).length >= all.length ? all : lanes.map((lane) => ({ lane, rt: lane.rt }));
}

/** Copies of the weights of a share on the worker's own stream; the lane must have been synced since they came. */
export function weightsFor({ lane, rt }: Worker, { parts }: Share): BlockWeights {
  const names = parts.map(({ linear }) => `${linear.name}.weight`);
  return new Map(names.map((name) => [name, rt.copyFrom(lane.source.get(name) as Tensor)] as const));
}

/** What a worker made, on its lane's stream. Takes the replacements over. */
export async function handedOver({ lane, rt }: Worker, made: readonly Replacement[]): Promise<Replacement[]> {
  if (rt === lane.rt) return [...made];
  await rt.sync();
  return made.map(({ part, weight }) => {
    const copy = lane.rt.copyFrom(weight);
    weight.dispose();
    return { part, weight: copy };
  });
}
