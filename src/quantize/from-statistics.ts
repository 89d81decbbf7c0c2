import { otherSource } from '../../formats/canonical/same-source.js';
import type { CalibrationRecord } from '../../formats/canonical/schema.js';
import type { SourceCheckpoint } from '../../formats/canonical/source.js';
import type { SavedStatistics } from '../../formats/statistics/read.js';
import { withBeside } from '../../native/beside.js';
import type { NativeRuntime } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { disposeStatistics, type FeedStatistics } from '../calibrate/statistics.js';
import { LpqError } from '../core/error.js';
import type { Feed, LinearRef, ModelGraph, Stage } from '../model/program.js';
import type { WeightSource } from '../model/source.js';
import { disposeWeights, loadWeights } from '../model/weights.js';
import type { Assembly } from './assembly.js';
import { type BlockContext, quantizeShare, shareWork } from './blocks.js';
import { headStage } from './calibrated.js';
import { type QuantizeEvents, timed } from './events.js';
import type { Share } from './lanes.js';
import type { Work } from './model.js';
import type { Finished } from './progress.js';

/** The calibration that the statistics were taken with, as for one of the run's own. */
export function recordOf({ manifest }: SavedStatistics): CalibrationRecord {
  const { length, tokensSha256, ...record } = manifest.calibration;
  return record;
}

/** Throws LPQ_STATISTICS unless the statistics are of this model, with those of every module to quantize among them. */
export function requireStatistics(
  saved: SavedStatistics,
  source: SourceCheckpoint,
  graph: ModelGraph,
  modules: ReadonlySet<string>,
): void {
  const other = otherSource(saved.manifest.model, source.dir, source.weights.fingerprint());
  if (other)
    throw new LpqError('LPQ_STATISTICS', `the statistics in ${saved.dir} belong to another model than ${source.dir}`, {
      ...other,
      hint: 'Save statistics of this model with --save-stats.',
    });
  const stages: readonly Stage[] = [...graph.blocks.flatMap((block) => block.stages), headStage(graph)];
  for (const { linears } of stages.flatMap(({ feeds }) => feeds))
    if (linears.some(({ name }) => modules.has(name))) saved.feed(linears);
}

/**
 * Quantizes every module with what was saved of its input. No activations: each block is solved by itself, all its feeds
 * shared out over the devices, and those that a stopped run has finished are only skipped.
 */
export async function quantizeFromStatistics(
  context: BlockContext,
  rts: readonly NativeRuntime[],
  saved: SavedStatistics,
  work: readonly Work[],
  source: WeightSource,
  events: QuantizeEvents,
  progress: Finished,
): Promise<void> {
  const all = withBeside(rts);
  for (const { key, block } of work) {
    if (progress.has(key)) continue;
    const feeds = block.stages.flatMap((stage) => stage.feeds);
    const wanted = feeds.filter(({ linears }) => linears.some(({ name }) => context.schemes.has(name)));
    await timed(events, 'block', async () => {
      context.onStage(block, block.stages[0] as Stage);
      const workers = wanted.length >= all.length ? all : rts;
      await shareWork(context, wanted, workers.length, async (shares, index, modules) => {
        for (const [i, share] of shares.entries()) {
          const next = shares[i + 1];
          if (next) saved.prefetch(saved.feed(next.feed.linears).name);
          await solveSaved(context, workers[index] as NativeRuntime, saved, share, source, modules);
        }
      });
    });
  }
}

async function solveSaved(
  context: BlockContext,
  rt: NativeRuntime,
  saved: SavedStatistics,
  share: Share,
  source: WeightSource,
  modules: Assembly,
): Promise<void> {
  const linears = share.parts.map(({ linear }) => linear).filter(({ name }) => context.schemes.has(name));
  if (linears.length === 0) return;
  const statistics = await upload(rt, saved, share.feed);
  try {
    const names = (some: readonly LinearRef[]) => some.map(({ name }) => `${name}.weight`);
    const transposed = new Set(names(linears.filter((linear) => linear.transposed)));
    const weights = await loadWeights(rt, source, names(linears), transposed);
    try {
      for (const { weight } of await quantizeShare(context, rt, share, weights, statistics, modules)) weight.dispose();
    } finally {
      disposeWeights(weights);
    }
  } finally {
    disposeStatistics(new Map([[share.feed.id, statistics]]));
  }
}

async function upload(rt: NativeRuntime, saved: SavedStatistics, feed: Feed): Promise<FeedStatistics> {
  const { name, rows } = saved.feed(feed.linears);
  const onDevice = rt.device !== 'cpu';
  const host = await saved.moments(name, rt.momentDtype, !onDevice);
  try {
    const h = rt.upload(host);
    if (onDevice) ops.gramFinish(rt, h);
    return { h, tokens: rows };
  } finally {
    host.dispose();
  }
}
