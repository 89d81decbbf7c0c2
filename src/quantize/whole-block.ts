import type { Tensor } from '../../native/binding.js';
import { sweepStatistics } from '../calibrate/statistics.js';
import type { ActivationStream } from '../calibrate/streams.js';
import { LpqError } from '../core/error.js';
import type { BlockPlan } from '../model/plan.js';
import type { Block, LinearRef, Stage } from '../model/program.js';
import { Assembly, type FinishedModule } from './assembly.js';
import type { Batches } from './block-task.js';
import { type BlockContext, forActivations, quantizeBlock, type Walk } from './blocks.js';
import { distribute, type Lane, type Replacement, together } from './lanes.js';
import { linearsOf } from './linears.js';
import { clipOf } from './measures.js';
import { roomFor } from './memory-plan.js';
import type { Quantizer } from './quantizer.js';
import { disposeModule, downloadModule, mapTensors, type QuantizedModule } from './result.js';
import type { QuantScheme } from './scheme.js';
import { dequantizeResult } from './stored.js';

/** No feed is summed up: the sweep only takes the streams on. */
const NONE: ReadonlySet<string> = new Set();

/**
 * As quantizeBlock(), by a method that solves the block at once: the streams wait at its entrance meanwhile, and what the
 * unquantized block makes of them stands beside.
 */
export async function quantizeWholeBlock(
  context: BlockContext,
  solveBlock: NonNullable<Quantizer['solveBlock']>,
  plan: BlockPlan,
  block: Block,
  lanes: readonly Lane[],
  walk: Walk,
): Promise<Tensor[]> {
  const stage = block.stages[0] as Stage;
  context.onStage(block, stage);
  const room = ({ rt }: Lane) => roomFor(rt, walk.memory, block, 0, walk.held);
  await together(
    lanes.map((lane) => {
      const { rt, streams, current, source } = lane;
      return sweepStatistics(rt, streams, { stage, quantized: current, original: source }, NONE, room(lane));
    }),
  );
  await walk.onFirstSweep();
  const start = context.quantizer.feedsFirst ? await byFeeds(context, block, lanes, walk) : new Map();
  const copies: ActivationStream[] = [];
  try {
    const targets = await together(
      lanes.map(async (lane) => {
        const { rt, streams, source } = lane;
        const target = streams.original ?? streams.quantized.copy();
        if (!streams.original) copies.push(target);
        for (const each of block.stages) target.follow({ stage: each, weights: source });
        const sections = [{ batches: target.batches, paired: 0 }];
        const alone = { ...streams, quantized: target, original: undefined, sections };
        await sweepStatistics(rt, alone, { stage, quantized: source, original: source }, NONE, room(lane));
        return target;
      }),
    );
    const wanted = linearsOf(block).filter(({ name }) => context.schemes.has(name));
    const solved = await solveBlock({
      block,
      plan,
      schemes: new Map(wanted.map(({ name }) => [name, context.schemes.get(name) as QuantScheme])),
      lanes: lanes.map(({ rt, source, current, streams }, i) => ({
        rt,
        weights: source,
        ...(current.activations && { forms: current.activations }),
        inputs: batchesOf(streams.quantized),
        outputs: batchesOf(targets[i] as ActivationStream),
      })),
      start,
      check: (id = stage.id) => context.onStage(block, { id }),
      warn: (line, data) => context.onWarning?.(line, data),
    });
    const tokens = lanes.reduce((sum, { streams }) => sum + streams.quantized.tokens, 0);
    const replaced = await record(context, lanes[0] as Lane, wanted, solved, tokens);
    const made = await distribute(
      lanes,
      lanes.map((_, i) => (i === 0 ? replaced : [])),
    );
    for (const { streams, current } of lanes)
      for (const each of block.stages) streams.quantized.follow({ stage: each, weights: current });
    return made;
  } finally {
    for (const copy of copies) copy.dispose();
    for (const module of start.values()) disposeModule(module);
  }
}

/** What feeds make of the block (quantizeBlock()), in the CPU's memory; the streams wait meanwhile. */
async function byFeeds(
  context: BlockContext,
  block: Block,
  lanes: readonly Lane[],
  walk: Walk,
): Promise<Map<string, QuantizedModule>> {
  const modules = new Map<string, QuantizedModule>();
  const copies = lanes.map(({ streams, current, ...lane }): Lane => {
    const own = { quantized: streams.quantized.copy(), original: streams.original?.copy() };
    return { ...lane, current: Object.assign(new Map(current), current), streams: { ...streams, ...own } };
  });
  const onModule = async ({ linear, result, relativeError }: FinishedModule): Promise<void> => {
    const kept = mapTensors(result, (tensor) => tensor.view(tensor.shape));
    modules.set(linear.name, { ...kept, quality: { ...kept.quality, relativeError } });
  };
  const waiting = ({ streams }: Lane) => streams.quantized.residentBytes + (streams.original?.residentBytes ?? 0);
  try {
    const made = await quantizeBlock({ ...context, onModule }, block, copies, {
      ...walk,
      memory: { ...walk.memory, whole: 0 },
      held: walk.held + Math.max(...lanes.map(waiting)),
      onFirstSweep: async () => {},
    });
    for (const { rt } of lanes) await rt.sync();
    for (const tensor of made) tensor.dispose();
    return modules;
  } catch (error) {
    for (const module of modules.values()) disposeModule(module);
    throw error;
  } finally {
    for (const { streams } of copies) {
      streams.quantized.dispose();
      streams.original?.dispose();
    }
  }
}

function batchesOf(stream: ActivationStream): Batches {
  return { count: stream.batches, state: (batch) => stream.peek(batch) };
}

/** Hands the modules on, and returns their dequantized weights on the lane's device. Disposes of the modules. */
async function record(
  context: BlockContext,
  { rt, source }: Lane,
  wanted: readonly LinearRef[],
  solved: ReadonlyMap<string, QuantizedModule>,
  tokens: number,
): Promise<Replacement[]> {
  const replaced: Replacement[] = [];
  const modules = new Assembly(context.onModule);
  try {
    for (const linear of wanted) {
      const module = solved.get(linear.name);
      if (!module) throw new LpqError('LPQ_INTERNAL', `--method ${context.quantizer.method} left out ${linear.name}`);
      const clip = await clipOf(rt, linear.name, source.get(`${linear.name}.weight`) as Tensor, module);
      const part = { linear, first: 0, rows: linear.n };
      replaced.push({ part, weight: forActivations(rt, dequantizeResult(rt, module)) });
      const result = await downloadModule(rt, { ...module, measures: { ...module.measures, ...clip } });
      // How many of them an expert saw, only the method knows.
      await modules.add({ part, result, sums: undefined, tokens: linear.expert === undefined ? tokens : null });
    }
    return replaced;
  } catch (error) {
    for (const { weight } of replaced) weight.dispose();
    throw error;
  } finally {
    for (const module of solved.values()) disposeModule(module);
    modules.dispose();
  }
}
