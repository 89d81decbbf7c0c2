import { existsSync, lstatSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { mkdir, rm } from 'node:fs/promises';
import path from 'node:path';
import type { PartialMode } from '../../formats/directory/partial.js';
import { writeError } from '../../formats/directory/write-error.js';
import { LpqError } from '../core/error.js';
import type { HubFile } from '../hub/listing.js';
import type { ModelName } from '../hub/name.js';

const FACTS = 'stream.json';
const LOCK = 'lock';

/**
 * OUT.stream beside the output OUT: what a run has of the shards of a model on the Hub.
 *
 *   stream.json      the model and its commit
 *   lock             held by the process that writes
 *   ETAG.head        a shard's bytes up to its data, then samples of its tensors
 *   ETAG             a shard
 *   ETAG.incomplete  what has come of one
 */
export class StreamFolder {
  readonly path: string;

  /** Throws LPQ_PARTIAL_EXISTS for a folder that lpq did not make. */
  constructor(output: string) {
    this.path = `${path.resolve(output)}.stream`;
    if (!existsSync(this.path)) return;
    const foreign = !lstatSync(this.path).isDirectory() || readdirSync(this.path).some((name) => !OURS.test(name));
    if (foreign)
      throw new LpqError('LPQ_PARTIAL_EXISTS', `${this.path} is not a folder of shards of lpq`, {
        hint: 'Move it, or choose another output.',
      });
  }

  get lock(): string {
    return path.join(this.path, LOCK);
  }

  blob({ etag }: HubFile): string {
    return path.join(this.path, etag);
  }

  head({ etag }: HubFile): string {
    return path.join(this.path, `${etag}.head`);
  }

  /** The commit that a stopped run of the model began with: what its branch was then. */
  commitOf(model: ModelName): string | undefined {
    try {
      const facts = JSON.parse(readFileSync(path.join(this.path, FACTS), 'utf8')) as Partial<Facts>;
      if (facts.id !== model.id || facts.revision !== model.revision) return undefined;
      return /^[0-9a-f]{40}$/.test(facts.commit ?? '') ? facts.commit : undefined;
    } catch {
      return undefined;
    }
  }

  /** Makes it for these files; what is of others goes, and all of it with 'restart'. Throws LPQ_OUTPUT_WRITE, LPQ_DISK_FULL. */
  async prepare(facts: Facts, files: readonly HubFile[], mode: PartialMode): Promise<void> {
    try {
      await mkdir(this.path, { recursive: true });
      const etags = new Set(mode === 'restart' ? [] : files.map(({ etag }) => etag));
      for (const name of readdirSync(this.path))
        if (name !== LOCK && !etags.has(name.replace(/\.(head|incomplete)$/, '')))
          rmSync(path.join(this.path, name), { force: true });
      writeFileSync(path.join(this.path, FACTS), `${JSON.stringify(facts)}\n`);
    } catch (cause) {
      throw writeError(this.path, cause);
    }
  }

  /** Removes it; with `keep` only where no shard, and no part of one, would be lost. */
  async end(keep: boolean): Promise<void> {
    const holds = (name: string) => name !== LOCK && name !== FACTS && !name.includes('.head');
    if (keep && existsSync(this.path) && readdirSync(this.path).some(holds)) return;
    await rm(this.path, { recursive: true, force: true });
  }
}

interface Facts {
  readonly id: string;
  readonly revision: string;
  readonly commit: string;
}

const OURS = /^(stream\.json|lock|[0-9a-f]{40}([0-9a-f]{24})?(\.head|\.head\.new|\.incomplete)?)$/;
