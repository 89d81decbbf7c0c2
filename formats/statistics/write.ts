import { statfs } from 'node:fs/promises';
import type { Tensor } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import { OutputDirectory } from '../directory/output-directory.js';
import { SafetensorsWriter } from '../safetensors/write.js';
import { SHARD_FILE, type Shard } from '../shards/shard.js';
import { type SavedFeed, type StatisticsManifest, triangle } from './schema.js';
import { packTriangle } from './triangle.js';

/** What is to come of one activation; rows are known at the end. */
export type DeclaredFeed = Pick<SavedFeed, 'linears' | 'k'>;
/** What the manifest says beside what the writer knows itself. */
export type StatisticsFacts = Pick<
  StatisticsManifest,
  'lpq' | 'model' | 'calibration' | 'backend' | 'products' | 'parts'
>;

/** Bytes that the moments of these feeds take on disk. */
export function statisticsBytes(feeds: Iterable<DeclaredFeed>): number {
  let sum = 0;
  for (const { k } of feeds) sum += 4 * triangle(k);
  return sum;
}

/** Writes a statistics directory, which appears complete or not at all. */
export class StatisticsWriter {
  private readonly rows = new Map<string, number>();

  private constructor(
    readonly output: OutputDirectory,
    private readonly feeds: ReadonlyMap<string, DeclaredFeed>,
    private readonly writer: SafetensorsWriter,
  ) {}

  /** `feeds` by the names of their tensors. Throws LPQ_OUTPUT_EXISTS, LPQ_DISK_FULL before any work, LPQ_OUTPUT_WRITE. */
  static async create(target: string, feeds: ReadonlyMap<string, DeclaredFeed>): Promise<StatisticsWriter> {
    const output = await OutputDirectory.create(target);
    try {
      const need = statisticsBytes(feeds.values());
      const { bavail, bsize } = await statfs(output.path);
      if (need > bavail * bsize)
        throw new LpqError('LPQ_DISK_FULL', `the statistics do not fit on the disk of ${target}`, {
          got: `${bavail * bsize} bytes free`,
          expected: `${need} bytes`,
          hint: 'Free some space, or choose another disk.',
        });
      const specs = [...feeds].map(([name, { k }]) => ({ name, dtype: 'F32' as const, shape: [triangle(k)] }));
      const writer = await SafetensorsWriter.create(output.path, specs, {
        stem: 'statistics',
        metadata: {},
        finite: true,
      });
      return new StatisticsWriter(output, feeds, writer);
    } catch (error) {
      await output.abort();
      throw error;
    }
  }

  /** Writes H [K,K] (f64 or f32, in the CPU's memory) of one feed. */
  async write(name: string, h: Tensor, rows: number): Promise<void> {
    const packed = await packTriangle(h);
    try {
      await this.writePacked(name, packed, rows);
    } finally {
      packed.dispose();
    }
  }

  /** Writes the packed triangle (f32) of one feed. */
  async writePacked(name: string, packed: Tensor, rows: number): Promise<void> {
    await this.writer.write(name, packed);
    this.rows.set(name, rows);
  }

  /** Completes the directory; with `shard` as a part of one, which only lpq merge takes. */
  async finish(facts: StatisticsFacts, shard?: Shard): Promise<StatisticsManifest> {
    const { files, sha256 } = await this.writer.finish();
    const manifest: StatisticsManifest = {
      format: 'lpq-statistics',
      version: 1,
      ...facts,
      files: files.filter((file) => file.endsWith('.safetensors')),
      feeds: Object.fromEntries(
        [...this.feeds].map(([name, { linears, k }]) => [
          name,
          { linears, k, rows: this.rows.get(name) as number, sha256: sha256.get(name) as string },
        ]),
      ),
    };
    if (shard)
      await this.output.writeJson(SHARD_FILE, {
        format: 'lpq-shard',
        version: 1,
        ...shard,
        of: 'statistics',
        manifest,
      });
    else await this.output.writeJson('lpq.json', manifest);
    await this.output.commit();
    return manifest;
  }

  /** Removes what was written. Harmless after finish(). */
  async abort(): Promise<void> {
    await this.writer.abort();
    await this.output.abort();
  }
}
