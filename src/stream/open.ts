import { setMaxListeners } from 'node:events';
import path from 'node:path';
import type { PartialMode } from '../../formats/directory/partial.js';
import { writeError } from '../../formats/directory/write-error.js';
import { LpqError } from '../core/error.js';
import { type ClientOptions, HubClient } from '../hub/client.js';
import { downloadBlob } from '../hub/download.js';
import { hubEnvironment } from '../hub/environment.js';
import { fileUrl, type HubFile } from '../hub/listing.js';
import { lockFile } from '../hub/lock.js';
import type { ModelName } from '../hub/name.js';
import { RangeReader } from '../hub/ranges.js';
import type { StreamFolder } from './folder.js';
import { readHeads } from './heads.js';
import { Place } from './places.js';
import { Supply } from './supply.js';

/** What a stream is of. */
export interface Streamed {
  readonly model: ModelName;
  readonly commit: string;
  /** A directory with all of the model but the shards that are left on the Hub. */
  readonly dir: string;
  /** All shards, by name, and which of them are left. */
  readonly shards: readonly HubFile[];
  readonly left: ReadonlySet<HubFile>;
}

/** An open stream; closing it keeps what has come for a run that goes on, or removes the folder. */
export interface OpenStream {
  readonly supply: Supply;
  close(keep: boolean): Promise<void>;
}

/**
 * Reads the headers of all shards, and fetches shards into the folder from then on. Throws LPQ_HUB_* (docs/hub.md), LPQ_SAFETENSORS,
 * LPQ_DISK_FULL, LPQ_OUTPUT_WRITE, LPQ_ABORTED.
 */
export async function openStream(
  { model, commit, dir, shards, left }: Streamed,
  folder: StreamFolder,
  mode: PartialMode,
  options: ClientOptions & { readonly onWarning?: (message: string) => void } = {},
): Promise<OpenStream> {
  for (const { path: name } of shards)
    if (!name.endsWith('.safetensors'))
      throw new LpqError('LPQ_USAGE', `--stream has no effect on ${name} of ${model.id}: it reads safetensors`, {
        hint: 'Leave it out.',
      });
  const stop = new AbortController();
  const signal = AbortSignal.any([stop.signal, ...(options.signal ? [options.signal] : [])]);
  setMaxListeners(0, signal); // each request is one
  const client = new HubClient(hubEnvironment(), { ...options, signal });
  const url = ({ path: name }: HubFile) => fileUrl(client.environment.endpoint, model, commit, name);
  let unlock: (() => Promise<void>) | undefined;
  try {
    unlock = await lockFile(folder.lock, client, () =>
      options.onWarning?.(`waiting for another process that writes to ${folder.path}`),
    ).catch((cause: unknown) => {
      throw writeError(folder.path, cause);
    });
    await folder.prepare({ id: model.id, revision: model.revision, commit }, shards, mode);
    const heads = await readHeads(
      shards.map((file) => {
        const reader = new RangeReader(client, model, file, url(file));
        return { file, headPath: folder.head(file), readPart: (at, length) => reader.read(at, length) };
      }),
    );
    const places = shards.map((file, i) => {
      const own = left.has(file);
      const at = own ? folder.blob(file) : path.join(dir, file.path);
      return new Place(heads[i] as (typeof heads)[number], file, at, own);
    });
    const supply = new Supply(places, ({ file, path: blob }, onBytes) =>
      downloadBlob(client, { model, file, url: url(file), blob, onBytes }),
    );
    return {
      supply,
      close: async (keep) => {
        stop.abort();
        await supply.close();
        await client.close();
        await folder.end(keep);
        await unlock?.();
      },
    };
  } catch (error) {
    stop.abort();
    await client.close();
    if (unlock) await folder.end(true);
    await unlock?.();
    throw error;
  }
}
