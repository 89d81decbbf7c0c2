import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import path from 'node:path';
import type { Tensor } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import { readRegular } from '../directory/read-file.js';
import { hashTensor } from '../safetensors/hash.js';
import { SafetensorsFile } from '../safetensors/read.js';
import { type SavedFeed, type StatisticsManifest, statisticsSchema, triangle } from './schema.js';
import { unpackTriangle } from './triangle.js';

const AGAIN = 'Save the statistics again with --save-stats.';

/** A statistics directory, mapped. What it holds is checked against its manifest on opening, the bytes when they are read. */
export class SavedStatistics {
  /** sha256 of the manifest, which names the sha256 of everything else. */
  readonly sha256: string;
  private readonly feedOf = new Map<string, string>();
  private readonly checks = new Map<string, Promise<string>>();

  private constructor(
    readonly dir: string,
    readonly manifest: StatisticsManifest,
    manifestBytes: Uint8Array,
    private readonly files: readonly SafetensorsFile[],
    private readonly owner: ReadonlyMap<string, SafetensorsFile>,
  ) {
    this.sha256 = createHash('sha256').update(manifestBytes).digest('hex');
    for (const [name, { linears }] of Object.entries(manifest.feeds))
      for (const linear of linears) this.feedOf.set(linear, name);
  }

  /** Throws LPQ_STATISTICS for a directory that holds none, or others than its manifest says; LPQ_SAFETENSORS. */
  static open(dir: string): SavedStatistics {
    const place = path.join(dir, 'lpq.json');
    if (!existsSync(place))
      throw new LpqError('LPQ_STATISTICS', `${dir} holds no saved statistics`, {
        got: existsSync(dir) ? 'no lpq.json in it' : 'no such directory',
        hint: 'Save some with lpq quantize MODEL --save-stats DIR.',
      });
    const bytes = readRegular(place);
    return SavedStatistics.over(dir, parseManifest(place, bytes), bytes);
  }

  /** Those of a manifest that was read elsewhere: of a part (formats/shards). Throws LPQ_STATISTICS, LPQ_SAFETENSORS. */
  static over(dir: string, manifest: StatisticsManifest, bytes: Uint8Array): SavedStatistics {
    const files: SafetensorsFile[] = [];
    try {
      const owner = new Map<string, SafetensorsFile>();
      for (const name of manifest.files) {
        const file = path.join(dir, name);
        if (!existsSync(file))
          throw new LpqError('LPQ_STATISTICS', `the statistics in ${dir} lack ${name}`, { hint: AGAIN });
        const opened = SafetensorsFile.open(file);
        files.push(opened);
        for (const tensor of opened.names()) owner.set(tensor, opened);
      }
      for (const [name, { k }] of Object.entries(manifest.feeds)) checkTensor(dir, owner.get(name), name, k);
      return new SavedStatistics(dir, manifest, bytes, files, owner);
    } catch (error) {
      for (const file of files) file.close();
      throw error;
    }
  }

  /**
   * The feed that these linears read, all of them and of `k` input features. Throws LPQ_STATISTICS naming the one of which
   * there are no statistics, or others.
   */
  feed(linears: readonly { readonly name: string; readonly k: number }[]): SavedFeed & { readonly name: string } {
    const [first] = linears as [{ name: string; k: number }];
    const name = this.feedOf.get(first.name);
    const stranger = linears.find((linear) => this.feedOf.get(linear.name) !== name);
    if (name === undefined || stranger)
      throw new LpqError('LPQ_STATISTICS', `${this.dir} has no statistics of ${(stranger ?? first).name}`, {
        hint: AGAIN,
      });
    const feed = this.manifest.feeds[name] as SavedFeed;
    if (feed.k !== first.k)
      throw new LpqError('LPQ_STATISTICS', `the statistics of ${first.name} in ${this.dir} have another shape`, {
        got: `${feed.k} input features`,
        expected: `${first.k}`,
        hint: AGAIN,
      });
    return { ...feed, name };
  }

  /** Begins to read and hash a feed's tensor, for the moments() to come. */
  prefetch(name: string): void {
    this.digest(name).catch(() => {}); // moments() throws it
  }

  /**
   * H [K,K] of `dtype` in the CPU's memory, whole or (`mirrored` false) only its lower half; the caller disposes of it. Throws
   * LPQ_STATISTICS where the bytes are not those that were saved.
   */
  async moments(name: string, dtype: 'f64' | 'f32', mirrored: boolean): Promise<Tensor> {
    const { k } = await this.intact(name);
    const file = this.owner.get(name) as SafetensorsFile;
    const packed = file.tensor(name);
    try {
      return await unpackTriangle(packed, k, dtype, mirrored);
    } finally {
      packed.dispose();
      file.advise(name, 'dontneed');
    }
  }

  /** The lower triangle as it is stored, F32 [K(K+1)/2], mapped; the caller disposes of it. Throws the same errors as moments(). */
  async packed(name: string): Promise<Tensor> {
    await this.intact(name);
    return (this.owner.get(name) as SafetensorsFile).tensor(name);
  }

  /** The diagonal of H, F32 [K]: sums of squares. Throws the same errors as moments(). */
  async diagonal(name: string): Promise<Float32Array> {
    const { k } = await this.intact(name);
    const packed = (this.owner.get(name) as SafetensorsFile).tensor(name);
    const at = (i: number): number => {
      const bytes = packed.bytes(4 * (triangle(i) + i), 4);
      return new DataView(bytes.buffer, bytes.byteOffset, 4).getFloat32(0, true);
    };
    const sums = Float32Array.from({ length: k }, (_, i) => at(i));
    packed.dispose();
    return sums;
  }

  close(): void {
    for (const file of this.files) file.close();
  }

  private async intact(name: string): Promise<SavedFeed> {
    const feed = this.manifest.feeds[name] as SavedFeed;
    const got = await this.digest(name);
    if (got === feed.sha256) return feed;
    throw new LpqError('LPQ_STATISTICS', `the statistics '${name}' in ${this.dir} are damaged`, {
      got: `sha256 ${got}`,
      expected: `sha256 ${feed.sha256}`,
      hint: AGAIN,
    });
  }

  private digest(name: string): Promise<string> {
    let pending = this.checks.get(name);
    if (!pending) {
      const file = this.owner.get(name) as SafetensorsFile;
      file.advise(name, 'willneed');
      const packed = file.tensor(name);
      pending = hashTensor(file.spec(name), packed).finally(() => packed.dispose());
      this.checks.set(name, pending);
    }
    return pending;
  }
}

function parseManifest(place: string, bytes: Buffer): StatisticsManifest {
  let value: unknown;
  try {
    value = JSON.parse(bytes.toString('utf8'));
  } catch (cause) {
    throw new LpqError('LPQ_STATISTICS', `${place} is not valid JSON: ${(cause as Error).message}`, {
      cause,
      hint: AGAIN,
    });
  }
  const { format } = (value ?? {}) as { format?: unknown };
  if (format !== 'lpq-statistics')
    throw new LpqError('LPQ_STATISTICS', `${path.dirname(place)} holds no saved statistics`, {
      got: `format ${JSON.stringify(format) ?? 'not given'}`,
      expected: 'format "lpq-statistics"',
      hint: 'Save some with lpq quantize MODEL --save-stats DIR.',
    });
  const parsed = statisticsSchema.safeParse(value);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  throw new LpqError('LPQ_STATISTICS', `${place} is malformed at /${issue?.path.map(String).join('/') ?? ''}`, {
    got: issue?.message,
    hint: AGAIN,
  });
}

function checkTensor(dir: string, file: SafetensorsFile | undefined, name: string, k: number): void {
  if (!file)
    throw new LpqError('LPQ_STATISTICS', `the statistics in ${dir} lack the tensor '${name}'`, { hint: AGAIN });
  const { dtype, shape } = file.spec(name);
  if (dtype === 'F32' && shape.length === 1 && shape[0] === triangle(k)) return;
  throw new LpqError('LPQ_STATISTICS', `the tensor '${name}' of ${dir} is not a triangle of a ${k} x ${k} matrix`, {
    got: `${dtype} [${shape.join(', ')}]`,
    expected: `F32 [${triangle(k)}]`,
    hint: AGAIN,
  });
}
