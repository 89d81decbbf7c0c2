import { streamOf } from '../../../formats/safetensors/stream.js';
import type { SavedStatistics } from '../../../formats/statistics/read.js';
import type { NativeRuntime } from '../../../native/binding.js';
import { LpqError } from '../../core/error.js';
import { isPlan, openOrPlan } from '../../quantize/planned-source.js';
import { chooseDevices } from '../options/device.js';
import type { Needs } from '../options/preflight.js';
import { openRuntimes, type Run } from '../run.js';
import { deviceFor } from './method.js';
import { leastSeconds, needsOf } from './needs.js';
import type { QuantizeFlags, QuantizeOptions } from './options.js';

/**
 * What a run will take. On a CUDA device, and with --timed anywhere, also how long: by quantizing some of its blocks (probe.ts), or at least
 * how long where its weights are not here. Throws with --timed what the trial throws; without it a trial that fails is told.
 */
export async function timedNeeds(
  options: QuantizeOptions,
  flags: QuantizeFlags,
  statistics: SavedStatistics | undefined,
  run: Run,
): Promise<Needs> {
  const rts = flags.timed ? openRuntimes(run, deviceFor(options.settings, flags)) : devicesFor(options, flags, run);
  const needs = await needsOf(options, rts !== undefined && rts[0]?.device !== 'cpu');
  if (!rts) return needs;
  const least = async (): Promise<Needs> => {
    const seconds = await leastSeconds(options, rts, flags.timed === true);
    return seconds === undefined ? needs : { ...needs, leastSeconds: seconds };
  };
  if (hasNoWeights(options.source)) return least();
  try {
    const { seconds, block } = await (await import('./probe.js')).probedTime(options, statistics, rts, run);
    return { ...needs, seconds, block };
  } catch (error) {
    if (flags.timed || !(error instanceof LpqError) || error.code === 'LPQ_ABORTED') throw error;
    run.report.warn(`no block could be quantized to time the run: ${error.message}`, { code: error.code });
    return least();
  }
}

/** The CUDA devices that the run would compute on; undefined where it would not, or where they cannot be used here. */
function devicesFor(options: QuantizeOptions, flags: QuantizeFlags, run: Run): NativeRuntime[] | undefined {
  const wish = deviceFor(options.settings, flags);
  try {
    if (chooseDevices(wish.device).includes('cpu')) return undefined;
    const rts = openRuntimes(run, wish);
    return rts[0]?.device === 'cpu' ? undefined : rts;
  } catch (error) {
    if (!(error as { code?: string }).code?.match(/^LPQ_(DEVICE|CUDA|NATIVE)/)) throw error;
    return undefined;
  }
}

/** Whether a source is a plan, or comes shard by shard. */
function hasNoWeights(dir: string): boolean {
  if (streamOf(dir)) return true;
  const source = openOrPlan(dir);
  try {
    return isPlan(source);
  } finally {
    source.close();
  }
}
