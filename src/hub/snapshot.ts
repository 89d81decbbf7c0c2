import { mkdirSync, statfsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { tell } from '../core/activity.js';
import { LpqError } from '../core/error.js';
import { RepositoryCache, sizeOf } from './cache.js';
import { diskError, offline } from './cache-failures.js';
import { type ClientOptions, HubClient } from './client.js';
import { downloadBlob } from './download.js';
import { type HubEnvironment, hubEnvironment } from './environment.js';
import { fileUrl, type HubFile, isCommit, listRepository, resolveRevision } from './listing.js';
import { lockFile } from './lock.js';
import { type ModelName, printModelName } from './name.js';
import { isWeights, selectFiles, shardsOf } from './selection.js';

export interface SnapshotOptions extends ClientOptions {
  /** Default: that of the process. */
  readonly environment?: HubEnvironment | undefined;
  /** What is going to be downloaded; not called when everything is there. */
  readonly onPlan?: (plan: DownloadPlan) => void;
  /** Bytes that are there of all that was missing; `file` is the one that moved. */
  readonly onProgress?: (done: number, file: string) => void;
  /** Something to know although the run goes on. */
  readonly onWarning?: (message: string) => void;
  /** Files at once. Default 4. */
  readonly parallel?: number;
  /** Download.partBytes. */
  readonly partBytes?: number;
  /** false: leaves the weights on the Hub, but for those that are there. */
  readonly weights?: boolean;
}

export interface DownloadPlan {
  readonly id: string;
  readonly revision: string;
  readonly commit: string;
  /** Files that are missing, and their bytes. */
  readonly files: number;
  readonly bytes: number;
}

export interface Snapshot {
  /** A directory like that of any checkpoint. */
  readonly dir: string;
  readonly commit: string;
  /** Bytes that came over the network's files, 0 when everything was there. */
  readonly downloaded: number;
  /** All files of weights, by name, and those of them that stayed on the Hub; none without `weights: false`. */
  readonly weights: readonly HubFile[];
  readonly left: readonly HubFile[];
}

const NONE_LEFT = { weights: [], left: [] };

/** Failures that leave the cache as the best that is known. */
const AWAY: ReadonlySet<string> = new Set([
  'LPQ_HUB_CUT_OFF',
  'LPQ_HUB_RATE_LIMIT',
  'LPQ_HUB_SERVER',
  'LPQ_HUB_TIMEOUT',
  'LPQ_HUB_UNREACHABLE',
]);

/** What transformers asks for in case it is there; that it is not is worth a note. */
const OPTIONAL = [
  'adapter_config.json',
  'added_tokens.json',
  'chat_template.jinja',
  'chat_template.json',
  'generation_config.json',
  'model.safetensors',
  'model.safetensors.index.json',
  'processor_config.json',
  'special_tokens_map.json',
];

/**
 * A model of the Hub as a directory of the cache that Python's huggingface_hub uses. Without any request when the revision is
 * a commit that is there in full, or with HF_HUB_OFFLINE; otherwise the revision is looked up, and what is missing is
 * downloaded. While the Hub cannot be reached, what a branch was when last looked up serves, with a warning.
 * Throws LPQ_HUB_* (docs/hub.md), LPQ_SAFETENSORS_INDEX, LPQ_USAGE, LPQ_DISK_FULL, LPQ_OUTPUT_WRITE, LPQ_ABORTED.
 */
export async function hubSnapshot(model: ModelName, options: SnapshotOptions = {}): Promise<Snapshot> {
  const environment = options.environment ?? hubEnvironment();
  const cache = new RepositoryCache(environment.cache, model);
  const known = cache.commitOf(model.revision);
  const missing = known === undefined ? undefined : cache.missing(known);
  const here = known !== undefined &&
    missing?.length === 0 && { dir: cache.snapshot(known), commit: known, downloaded: 0, ...NONE_LEFT };
  if (here && (environment.offline || isCommit(model.revision))) return here;
  if (environment.offline) throw offline(model, environment, missing);
  tell(`asking ${environment.endpoint} for ${printModelName(model)}`);
  const client = new HubClient(environment, options);
  try {
    const commit = isCommit(model.revision) ? model.revision : await resolveRevision(client, model);
    return await new Fetch(client, cache, commit, options).run();
  } catch (error) {
    if (!(error instanceof LpqError)) throw diskError(environment, error);
    if (!here || !AWAY.has(error.code)) throw error;
    options.onWarning?.(
      `using the last known commit of ${printModelName(model)} (${here.commit.slice(0, 12)}): ${error.message}`,
    );
    return here;
  } finally {
    await client.close();
  }
}

/** One commit being completed. */
class Fetch {
  private done = 0;
  private downloaded = 0;

  constructor(
    private readonly client: HubClient,
    private readonly cache: RepositoryCache,
    private readonly commit: string,
    private readonly options: SnapshotOptions,
  ) {}

  async run(): Promise<Snapshot> {
    const { cache, commit } = this;
    const { id, revision } = cache.model;
    const tree = await this.listing();
    const byPath = new Map(tree.map((file) => [file.path, file]));
    const { index, files } = selectFiles(id, [...byPath.keys()]);
    const chosen = files.map((file) => byPath.get(file) as HubFile);
    if (index !== undefined) {
      // Small, and nothing is known before it is read.
      const file = byPath.get(index) as HubFile;
      await this.fetchAll([file]);
      const shards = shardsOf(id, index, await readFile(cache.blob(file), 'utf8'), new Set(byPath.keys()));
      chosen.push(...shards.map((shard) => byPath.get(shard) as HubFile));
    }
    const weights = this.options.weights === false ? chosen.filter(({ path }) => isWeights(path)) : [];
    weights.sort((a, b) => (a.path < b.path ? -1 : 1));
    const left = weights.filter((file) => !cache.shows(commit, file) && !cache.hasBlob(file));
    for (const file of left) chosen.splice(chosen.indexOf(file), 1);
    this.done = 0;
    const missing = chosen.filter((file) => !cache.shows(commit, file) && !cache.hasBlob(file));
    if (missing.length > 0) {
      const bytes = missing.reduce((sum, { size }) => sum + size, 0);
      this.checkSpace(missing);
      this.options.onPlan?.({ id, revision, commit, files: missing.length, bytes });
    }
    await this.fetchAll(chosen);
    await cache.noteAbsent(
      commit,
      OPTIONAL.filter((file) => !byPath.has(file)),
    );
    await cache.writeRef(revision, commit);
    return { dir: cache.snapshot(commit), commit, downloaded: this.downloaded, weights, left };
  }

  private async listing(): Promise<readonly HubFile[]> {
    const { client, cache, commit } = this;
    const kept = cache.tree(commit);
    if (kept) return kept;
    const files = await listRepository(client, cache.model, commit);
    // What cannot be used is not worth keeping either.
    selectFiles(
      cache.model.id,
      files.map(({ path }) => path),
    );
    await cache.writeTree(commit, files);
    return files;
  }

  /** Several at once; the first failure stops the others. What they have so far stays for the next time. */
  private async fetchAll(files: readonly HubFile[]): Promise<void> {
    const stop = new AbortController();
    const { environment } = this.client;
    const signal = AbortSignal.any([this.client.signal, stop.signal]);
    const client = new HubClient(environment, { ...this.options, signal });
    const failures: unknown[] = [];
    // Two paths may be one blob.
    const groups = new Map<string, HubFile[]>();
    for (const file of files) groups.set(file.etag, [...(groups.get(file.etag) ?? []), file]);
    const queue = [...groups.values()];
    const worker = async () => {
      for (let next = queue.shift(); next !== undefined && failures.length === 0; next = queue.shift())
        try {
          await this.fetchOne(client, next);
        } catch (error) {
          failures.push(error);
          stop.abort();
        }
    };
    try {
      await Promise.all(Array.from({ length: this.options.parallel ?? 4 }, worker));
    } finally {
      await client.close();
    }
    if (failures.length > 0) throw failures[0];
  }

  private async fetchOne(client: HubClient, files: readonly HubFile[]): Promise<void> {
    const { cache, commit } = this;
    const { endpoint } = client.environment;
    const file = files[0] as HubFile;
    if (files.every((each) => cache.shows(commit, each))) return;
    client.check();
    if (!cache.hasBlob(file)) {
      const unlock = await lockFile(cache.lock(file), client, () =>
        this.options.onWarning?.(`waiting for another process that downloads ${file.path} of ${cache.model.id}`),
      );
      try {
        if (cache.hasBlob(file))
          this.moved(file.size, file); // another process was faster
        else
          await downloadBlob(client, {
            model: cache.model,
            file,
            url: fileUrl(endpoint, cache.model, commit, file.path),
            blob: cache.blob(file),
            onBytes: (count) => this.moved(count, file),
            partBytes: this.options.partBytes,
          }).then(() => {
            this.downloaded += file.size;
          });
      } finally {
        await unlock();
      }
    }
    for (const each of files) await cache.point(commit, each);
  }

  private moved(count: number, file: HubFile): void {
    this.done += count;
    this.options.onProgress?.(this.done, file.path);
  }

  private checkSpace(missing: readonly HubFile[]): void {
    const { cache: place } = this.client.environment;
    const needed = missing.reduce(
      (sum, file) => sum + Math.max(0, file.size - (sizeOf(`${this.cache.blob(file)}.incomplete`) ?? 0)),
      0,
    );
    mkdirSync(place, { recursive: true });
    const { bavail, bsize } = statfsSync(place);
    // Some network file systems know of no blocks.
    if (bsize === 0 || bavail * bsize >= needed || (bavail === 0 && statfsSync(place).blocks === 0)) return;
    throw new LpqError('LPQ_DISK_FULL', `${place} has no room for ${this.cache.model.id}`, {
      got: `${bavail * bsize} bytes`,
      expected: `${needed} bytes`,
      hint: 'Free some space, or set HF_HUB_CACHE to a directory on another disk.',
    });
  }
}
