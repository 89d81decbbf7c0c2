import type { SourceCheckpoint } from '../../../formats/canonical/source.js';
import { tensorBytes } from '../../../formats/safetensors/dtypes.js';
import type { TensorSpec } from '../../../formats/safetensors/header.js';
import { streamOf } from '../../../formats/safetensors/stream.js';
import type { NativeRuntime } from '../../../native/binding.js';
import { openBlocks, planSource } from '../../model/graph.js';
import { type CalibrationSize, memoryOf, outputBytes } from '../../quantize/estimate.js';
import { operationsOf, rateOf } from '../../quantize/estimate-time.js';
import type { ExtraNeeds } from '../../quantize/method.js';
import { planQuantization } from '../../quantize/plan.js';
import { openOrPlan } from '../../quantize/planned-source.js';
import { SourceView } from '../../quantize/source-view.js';
import type { Needs } from '../options/preflight.js';
import { methodOf } from './methods.js';
import type { QuantizeOptions } from './options.js';
import { schemesFrom } from './schemes.js';

/** A process and its text before it has a model (src/quantize/estimate.ts). */
const PROCESS_BYTES = 115e6;
/** A run of fewer operations ends before its time would matter; measuring the rate takes 2e10. */
const WORTH_TIMING = 1e13;

/** What a run will take, by formulas. */
export async function needsOf(
  { source: dir, settings, rules, stats, shard }: QuantizeOptions,
  onDevice: boolean,
): Promise<Needs> {
  const source = openOrPlan(dir);
  try {
    const request = { ...schemesFrom(settings, rules), lmHead: settings.lmHead, ...(shard && { shard }) };
    const output = await outputBytes(source, request);
    const calibration = await calibrationOf({ settings, stats });
    const view = new SourceView(source);
    const graph = openBlocks(view, settings.mtp);
    const bytes = [...view.names()].reduce((sum, name) => sum + sizeOf(view.spec(name)), 0);
    const shards = streamOf(dir)?.mostBytes;
    const { rss, device } = memoryOf(graph, bytes, calibration, onDevice);
    const { beside = 0, after = 0 } = (await extraOf(source, { settings, rules })) ?? {};
    const most = Math.max(rss + beside, PROCESS_BYTES + after);
    return { output, ...(shards !== undefined && { shards }), rss: most, device };
  } finally {
    source.close();
  }
}

/** What the method takes beside solving feeds. */
async function extraOf(
  source: SourceCheckpoint,
  { settings, rules }: Pick<QuantizeOptions, 'settings' | 'rules'>,
): Promise<ExtraNeeds | undefined> {
  const { extraNeeds } = methodOf(settings);
  if (!extraNeeds) return undefined;
  const graph = openBlocks(source, settings.mtp);
  const plan = planQuantization(graph, { ...schemesFrom(settings, rules), lmHead: settings.lmHead });
  return extraNeeds(graph, planSource(source), plan, settings);
}

async function calibrationOf({
  settings,
  stats,
}: Pick<QuantizeOptions, 'settings' | 'stats'>): Promise<CalibrationSize | undefined> {
  const { statistics, original } = await methodOf(settings).quantizer(settings);
  const kind = stats === undefined ? 'activations' : 'statistics';
  return statistics ? { tokens: settings.samples * settings.seqLen, original, kind } : undefined;
}

/** Floating-point operations of a run. */
async function operationsIn(options: QuantizeOptions): Promise<number> {
  const source = openOrPlan(options.source);
  try {
    const { mtp } = options.settings;
    const { blocks, predictions } = planSource(source);
    const plans = mtp ? [...blocks, ...predictions] : blocks;
    const extra = (await extraOf(source, options))?.operations ?? 0;
    return extra + operationsOf(openBlocks(source, mtp), plans, await calibrationOf(options));
  } finally {
    source.close();
  }
}

/** Seconds of operations on these devices together, at the rate that the first has now. */
const secondsOf = async (operations: number, rts: readonly NativeRuntime[]) =>
  operations / (await rateOf(rts[0] as NativeRuntime)) / rts.length;

/** Seconds that the multiplications of a run take, and so the run at least; undefined for a short one, unless `any` is wanted, and for none. */
export async function leastSeconds(
  options: QuantizeOptions,
  rts: readonly NativeRuntime[],
  any = false,
): Promise<number | undefined> {
  if (options.redo) return undefined;
  const share = (await operationsIn(options)) / (options.shard?.count ?? 1);
  return share <= (any ? 0 : WORTH_TIMING) ? undefined : secondsOf(share, rts);
}

/** What a run is about to take, and of a long one how long at least. */
export async function needsOfRun(options: QuantizeOptions, rts: readonly NativeRuntime[]): Promise<Needs> {
  const least = await leastSeconds(options, rts);
  const needs = await needsOf(options, rts[0]?.device !== 'cpu');
  return { ...needs, ...(least !== undefined && { leastSeconds: least }) };
}

function sizeOf({ dtype, shape }: TensorSpec): number {
  const bytes = tensorBytes(dtype, shape);
  return typeof bytes === 'number' ? bytes : 0;
}
