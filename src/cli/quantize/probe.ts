import { mkdirSync } from 'node:fs';
import path from 'node:path';
import { SourceCheckpoint } from '../../../formats/canonical/source.js';
import { OutputDirectory } from '../../../formats/directory/output-directory.js';
import type { SavedStatistics } from '../../../formats/statistics/read.js';
import type { NativeRuntime } from '../../../native/binding.js';
import type { Calibration } from '../../calibrate/text.js';
import { tell } from '../../core/activity.js';
import { openBlocks, planSource } from '../../model/graph.js';
import { type BlockCost, costsOf, standAlone, trialBlocks } from '../../quantize/block-kinds.js';
import { outputBytes } from '../../quantize/estimate.js';
import { extrapolate, type Foretold, type Trial } from '../../quantize/extrapolate.js';
import type { WholeTrial } from '../../quantize/method.js';
import { planQuantization } from '../../quantize/plan.js';
import { runTrial, type TrialTimes } from '../../quantize/trial.js';
import { registerOutput } from '../options/run-output.js';
import type { Run } from '../run.js';
import type { Reporter } from '../terminal/reporter.js';
import { version } from '../version.js';
import { calibrate } from './calibration.js';
import { methodOf } from './methods.js';
import type { QuantizeOptions } from './options.js';
import { decisions, starting } from './run.js';
import { schemesFrom } from './schemes.js';
import { type FullSettings, readsText } from './settings.js';

/** A second, larger trial is for blocks that are faster than this allows: seconds for all of it, and its most blocks. */
const [SECOND_SECONDS, MOST_BLOCKS] = [6, 24];
/** How many blocks more a second trial must have, so that it tells more. */
const MORE_BLOCKS = 3;

/** What every trial of a run has in common. */
interface Probe {
  readonly options: QuantizeOptions;
  readonly statistics: SavedStatistics | undefined;
  readonly calibration: Calibration | undefined;
  readonly whole: WholeTrial | undefined;
  readonly rts: readonly NativeRuntime[];
  readonly run: Run;
  readonly source: SourceCheckpoint;
  /** Where outputs may be written. */
  readonly place: string;
}

/**
 * The time of a run, from trials: its calibration text is read, and then some of its blocks are quantized as the run itself would, beside
 * the output, on its disk. Nothing stays. Throws what the run would throw of these blocks.
 */
export async function probedTime(
  options: QuantizeOptions,
  statistics: SavedStatistics | undefined,
  rts: readonly NativeRuntime[],
  run: Run,
): Promise<Foretold> {
  const { settings, shard } = options;
  const method = methodOf(settings);
  const clock = clockOf();
  const reads = readsText(method, settings) && !statistics;
  const calibration = reads ? await calibrate(options, run, method.further?.(settings)) : undefined;
  const read = clock();
  const source = SourceCheckpoint.open(options.source);
  let directory: OutputDirectory | undefined;
  try {
    directory = await OutputDirectory.create(options.output);
    registerOutput(directory, run);
    const whole = calibration && (await method.wholeTrial?.(settings));
    const probe: Probe = { options, statistics, calibration, whole, rts, run, source, place: directory.path };
    const { costs, own, alone } = await costsIn(probe);
    const trials = [await trial(probe, trialBlocks(own, alone))];
    const more = secondBlocks(trials[0] as Timed, own, alone);
    if (more && whole) trials.push(await trial(probe, [own.findIndex(({ quantized }) => quantized)]));
    if (more) trials.push(await trial(probe, more));
    const graph = openBlocks(source, settings.mtp);
    const request = { ...schemesFrom(settings, options.rules), lmHead: settings.lmHead };
    const found = extrapolate(trials, {
      costs,
      mine: (block) => shard === undefined || block % shard.count === shard.index,
      modelSize: whole?.size(graph, planSource(source), rts[0] as NativeRuntime) ?? 0,
      bytes: await outputBytes(source, { ...request, ...(shard && { shard }) }),
    });
    return { ...found, seconds: read + found.seconds };
  } finally {
    source.close();
    await directory?.abort();
  }
}

const clockOf = () => {
  const started = performance.now();
  return () => (performance.now() - started) / 1000;
};

interface Costs {
  readonly costs: BlockCost[];
  /** Without layers of multi-token prediction, which no trial has. */
  readonly own: BlockCost[];
  /** Whether a trial may leave some out in between. */
  readonly alone: boolean;
}

/** What the blocks of the model cost. */
async function costsIn({ options, source, statistics }: Probe): Promise<Costs> {
  const { settings, rules } = options;
  const graph = openBlocks(source, settings.mtp);
  const plan = planSource(source);
  const request = { ...schemesFrom(settings, rules), lmHead: settings.lmHead };
  const schemes = new Map([...planQuantization(graph, request)].map(([name, { scheme }]) => [name, scheme]));
  const quantizer = await methodOf(settings).quantizer(settings);
  const passes = quantizer.statistics && !statistics;
  const costs = costsOf(graph, [...plan.blocks, ...plan.predictions], schemes, passes);
  return { costs, own: costs.slice(0, plan.blocks.length), alone: standAlone(plan) };
}

type Timed = Trial & { readonly seconds: number };

/** The blocks of a second trial, where the first was so fast that a larger one is more exact. */
function secondBlocks({ times, seconds, model }: Timed, costs: readonly BlockCost[], alone: boolean) {
  if (times.end === undefined || times.blocks.length >= costs.length) return undefined;
  const each = seconds / times.blocks.length;
  const least = times.blocks.length + MORE_BLOCKS;
  // What follows the blocks is told by two sizes of the model, one block and these.
  const room = Math.max(Math.floor(SECOND_SECONDS / each), model && each < 2 * MORE_BLOCKS ? least : 0);
  const count = Math.min(room, MOST_BLOCKS, costs.length);
  return count >= Math.min(least, costs.length) ? trialBlocks(costs, alone, count) : undefined;
}

/** Runs one, with what is decided about the whole model before. */
async function trial(probe: Probe, blocks: readonly number[]): Promise<Timed> {
  const { options, statistics, calibration, whole, rts, run } = probe;
  const settings = { ...options.settings, ...whole?.settings, mtp: false } as FullSettings;
  const part = probe.source.ofBlocks(blocks);
  const all = clockOf();
  const { quantizer, close } = await starting(options, await methodOf(settings).quantizer(settings));
  try {
    const request = { source: options.source, ...schemesFrom(settings, options.rules), lmHead: settings.lmHead };
    const clock = clockOf();
    let fixed: number | undefined;
    const quiet = quietly(run, () => {
      fixed ??= clock();
    });
    tell('preparing some blocks to time them');
    const decided = await decisions(part, request, { settings, quantizer, calibration }, rts, quiet);
    const prepared = { seconds: clock(), fixed: fixed ?? clock() };
    const began = clockOf();
    const output = path.join(probe.place, `trial-${blocks.length}`);
    mkdirSync(probe.place, { recursive: true });
    const times = await runTrial(
      rts,
      {
        ...request,
        ...{ output, quantizer, calibration, options: {}, version: version(), blocks },
        ...(statistics && { statistics }),
        ...decided,
      },
      { whole: whole !== undefined || settings.lmHead, now: began, check: () => run.interrupt.check() },
      (made) => registerOutput(made, run),
    );
    for (const rt of rts) await rt.sync();
    const model = whole && { model: modelOf(probe, part, times) };
    const bytes = await outputBytes(part, { ...request, blocks });
    return { times, prepared, ...model, bytes, seconds: all() };
  } finally {
    close();
  }
}

/** What all steps on the trial's model take. */
function modelOf({ whole, rts }: Probe, part: SourceCheckpoint, { steps, ends, head, end = 0 }: TrialTimes) {
  const rt = rts[0] as NativeRuntime;
  const [graph, plan] = [openBlocks(part), planSource(part)];
  const blocks = head ?? ends.findLast((at) => at !== undefined) ?? 0;
  const between = steps.slice(1).map((at, i) => at - (steps[i] as number));
  // Nothing tells when the last step ended.
  const last = between.toSorted((a, b) => a - b)[between.length >> 1] ?? 0;
  const times = {
    before: (steps[0] ?? end) - blocks,
    each: [...between, last],
    after: Math.max(0, end - (steps.at(-1) ?? end) - last),
  };
  return {
    seconds: whole?.seconds(times, graph, plan, rt) ?? 0,
    size: whole?.size(graph, plan, rt) ?? 0,
  };
}

/** A run that tells nobody of its preparation, but `onUpdate` of each of its steps. */
function quietly({ interrupt, exit }: Run, onUpdate: () => void): Run {
  const silent = () => {};
  const task = () => ({ update: onUpdate, end: silent });
  const report = { task, event: silent, warn: silent, detail: silent, step: silent } as unknown as Reporter;
  return { interrupt, exit, report };
}
