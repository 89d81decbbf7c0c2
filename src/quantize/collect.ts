import { SourceCheckpoint } from '../../formats/canonical/source.js';
import type { OutputDirectory } from '../../formats/directory/output-directory.js';
import { partOf, type Shard } from '../../formats/shards/shard.js';
import type { StatisticsManifest } from '../../formats/statistics/schema.js';
import {
  type DeclaredFeed,
  type StatisticsFacts,
  StatisticsWriter,
  statisticsBytes,
} from '../../formats/statistics/write.js';
import type { NativeRuntime } from '../../native/binding.js';
import { disposeStatistics, type FeedStatistics, sweepStatistics } from '../calibrate/statistics.js';
import { type Calibration, calibrationRecord } from '../calibrate/text.js';
import { openBlocks } from '../model/graph.js';
import type { Block, Feed, LinearRef, ModelGraph } from '../model/program.js';
import type { WeightSource } from '../model/source.js';
import { backendOf, tokensHash } from './identity.js';
import { gatherStatistics, together } from './lanes.js';
import { headBlock, passModel } from './pass.js';

/** What statistics are taken of. */
export interface CollectRequest {
  /** Directory of the source checkpoint, and of the result, which must not exist. */
  readonly source: string;
  readonly output: string;
  readonly calibration: Calibration;
  readonly version: string;
  /** Of layers of multi-token prediction, too. */
  readonly mtp?: boolean;
  /** Sums over this part of the sequences only, for lpq merge. */
  readonly shard?: Shard;
}

export interface CollectEvents {
  readonly onPlan?: (plan: { feeds: number; bytes: number; blocks: number }) => void;
  readonly onStage?: (block: number, blocks: number, stage: string) => void;
  readonly onFeed?: (feed: string, rows: number) => void;
}

/** The tensor that holds what is known of a feed. */
function tensorOf({ linears }: Feed): string {
  return `${(linears[0] as LinearRef).name}.moments`;
}

/** All blocks, and the head where it is a linear of its own: in front of layers of multi-token prediction, which change what it reads. */
export function walkOf(graph: ModelGraph): Block[] {
  const [own, predicting] = [false, true].map((is) => graph.blocks.filter(({ predicts = false }) => predicts === is));
  return [...(own ?? []), ...(graph.head.tied ? [] : [headBlock(graph)]), ...(predicting ?? [])];
}

/** What the statistics of a run are told from others by. */
export function statisticsFacts(
  request: Pick<CollectRequest, 'calibration' | 'version' | 'shard'>,
  source: SourceCheckpoint,
  rts: readonly NativeRuntime[],
): StatisticsFacts {
  const { calibration, version, shard } = request;
  return {
    lpq: version,
    model: { name: source.dir.split('/').filter(Boolean).at(-1) ?? '', fingerprint: source.weights.fingerprint() },
    calibration: {
      ...calibrationRecord(calibration),
      length: calibration.length,
      tokensSha256: tokensHash(calibration),
    },
    backend: backendOf(rts),
    ...(rts[0]?.device === 'cpu' && rts[0].products === 'bf16' && { products: 'bf16' as const }),
    ...(shard && shard.count > 1 && { parts: shard.count }),
  };
}

/**
 * Takes the calibration data through the unquantized model once and saves the second moments of what every linear reads.
 * The directory appears complete or not at all. Throws LPQ_OUTPUT_EXISTS, LPQ_DISK_FULL before any work, and what
 * reading, computing and writing throw.
 */
export async function collectStatistics(
  rts: readonly NativeRuntime[],
  request: CollectRequest,
  events: CollectEvents = {},
  register: (output: OutputDirectory) => void = () => {},
): Promise<StatisticsManifest> {
  const source = SourceCheckpoint.open(request.source);
  try {
    const graph = openBlocks(source, request.mtp);
    const walk = walkOf(graph);
    const feeds = new Map<string, DeclaredFeed>();
    for (const { stages } of walk)
      for (const feed of stages.flatMap((stage) => stage.feeds))
        feeds.set(tensorOf(feed), {
          linears: feed.linears.map(({ name }) => name),
          k: (feed.linears[0] as LinearRef).k,
        });
    const facts = statisticsFacts(request, source, rts);
    events.onPlan?.({ feeds: feeds.size, bytes: statisticsBytes(feeds.values()), blocks: graph.blocks.length });
    const writer = await StatisticsWriter.create(request.output, feeds);
    register(writer.output);
    try {
      const { sequences } = request.calibration;
      const read = { sequences: request.shard ? partOf(sequences, request.shard) : sequences };
      await sweepModel(rts, read, source, graph, walk, events, async (feed, found) => {
        const rt = rts[0] as NativeRuntime;
        const host = await rt.download(found.h);
        try {
          await writer.write(tensorOf(feed), host, found.tokens);
        } finally {
          host.dispose();
        }
        events.onFeed?.(tensorOf(feed), found.tokens);
      });
      return await writer.finish(facts, request.shard);
    } catch (error) {
      await writer.abort();
      throw error;
    }
  } finally {
    source.close();
  }
}

/** Every stage's statistics with no stage quantized, each feed's summed over all devices on the first. */
export async function sweepModel(
  rts: readonly NativeRuntime[],
  calibration: Pick<Calibration, 'sequences'>,
  source: WeightSource,
  graph: ModelGraph,
  walk: readonly Block[],
  events: CollectEvents,
  save: (feed: Feed, statistics: FeedStatistics) => Promise<void>,
): Promise<void> {
  await passModel(rts, calibration.sequences, source, graph, walk, async (block, stage, lanes) => {
    events.onStage?.(block.index, graph.blocks.length, stage.id);
    const ids = new Set(stage.feeds.map(({ id }) => id));
    const statistics = await together(
      lanes.map(({ rt, streams, weights, room }) =>
        sweepStatistics(rt, streams, { stage, quantized: weights, original: weights }, ids, room),
      ),
    );
    try {
      for (const feed of stage.feeds) {
        const sum = await gatherStatistics(statistics, feed.id, rts[0] as NativeRuntime);
        try {
          await save(feed, sum);
        } finally {
          disposeStatistics(new Map([[feed.id, sum]]));
        }
      }
    } finally {
      for (const each of statistics.flat()) disposeStatistics(each);
    }
  });
}
