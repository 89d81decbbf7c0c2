import { readFileSync, renameSync, writeFileSync } from 'node:fs';
import { writeError } from '../../formats/directory/write-error.js';
import { piecesOf, samplePlaces } from '../../formats/safetensors/fingerprint.js';
import { type Header, headerLength, parseHeader } from '../../formats/safetensors/header.js';
import type { RemoteShard } from '../../formats/safetensors/stream.js';
import { tell } from '../core/activity.js';
import { LpqError } from '../core/error.js';
import type { HubFile } from '../hub/listing.js';

/** A shard on the Hub, and how parts of it are read. */
export interface ShardFile {
  readonly file: HubFile;
  /** Where its head is kept: its bytes up to the data, then its samples. */
  readonly headPath: string;
  readPart(at: number, length: number): Promise<Uint8Array>;
}

/** Requests at once. They are small, so that the way there and back takes most of their time. */
const AT_ONCE = 16;
/** Pieces that are as near as that come together: so many bytes take no longer than another request. */
const GAP = 2 ** 15;

interface Head {
  readonly header: Header;
  readonly head: Uint8Array;
  /** What was kept of its samples, if anything. */
  readonly kept: Uint8Array;
}

/**
 * Headers and samples of all shards, in the order given, read in parts; what an earlier run kept is not read again. A shard's own bytes
 * prove them when it comes. Throws LPQ_SAFETENSORS, LPQ_HUB_*, LPQ_DISK_FULL, LPQ_OUTPUT_WRITE.
 */
export async function readHeads(shards: readonly ShardFile[]): Promise<RemoteShard[]> {
  const heads: Head[] = new Array(shards.length);
  await inParallel(shards, async (shard, i) => {
    tell('reading headers of shards', i, shards.length);
    heads[i] = keptHead(shard) ?? (await fetchedHead(shard));
  });
  const pieces = piecesOf(heads);
  const samples = heads.map(({ header, kept }) => {
    const bytes = [...samplePlaces(header, pieces)].reduce((sum, { length }) => sum + length, 0);
    return kept.length === bytes ? kept : new Uint8Array(bytes);
  });
  const runs = shards.flatMap((shard, i) =>
    samples[i] === heads[i]?.kept ? [] : runsOf((heads[i] as Head).header, pieces).map((run) => ({ shard, i, run })),
  );
  let done = 0;
  await inParallel(runs, async ({ shard, i, run }) => {
    const first = run[0] as Place;
    const last = run.at(-1) as Place;
    const bytes = await shard.readPart(first.at, last.at + last.length - first.at);
    for (const { at, length, into } of run)
      (samples[i] as Uint8Array).set(bytes.subarray(at - first.at, at - first.at + length), into);
    tell('reading samples of tensors', ++done, runs.length);
  });
  return shards.map((shard, i): RemoteShard => {
    const { header, head } = heads[i] as Head;
    const own = samples[i] as Uint8Array;
    if (own !== heads[i]?.kept) keep(shard.headPath, head, own);
    return { name: shard.file.path, bytes: shard.file.size, header, head, samples: own };
  });
}

interface Place {
  readonly at: number;
  readonly length: number;
  /** Where it goes among the samples. */
  readonly into: number;
}

/** Pieces of a shard, in runs that one request brings. */
function runsOf(header: Header, pieces: number): Place[][] {
  const runs: Place[][] = [];
  let into = 0;
  for (const { at, length } of samplePlaces(header, pieces)) {
    const before = runs.at(-1)?.at(-1);
    const place = { at, length, into };
    if (before && at - (before.at + before.length) <= GAP) runs.at(-1)?.push(place);
    else runs.push([place]);
    into += length;
  }
  return runs;
}

async function fetchedHead({ file, readPart }: ShardFile): Promise<Head> {
  if (file.size < 8) headerLength(file.path, new Uint8Array(), file.size);
  const prefix = await readPart(0, 8);
  const length = headerLength(file.path, prefix, file.size);
  const json = length > 0 ? await readPart(8, length) : new Uint8Array();
  const header = parseHeader(file.path, json, file.size);
  return { header, head: Buffer.concat([prefix, json]), kept: new Uint8Array() };
}

/** What an earlier run kept; undefined where that is nothing, or cannot be used. */
function keptHead({ file, headPath }: ShardFile): Head | undefined {
  let bytes: Buffer;
  try {
    bytes = readFileSync(headPath);
    const length = headerLength(file.path, bytes.subarray(0, 8), file.size);
    const end = 8 + length;
    if (bytes.length < end) return undefined;
    const header = parseHeader(file.path, bytes.subarray(8, end), file.size);
    return { header, head: bytes.subarray(0, end), kept: bytes.subarray(end) };
  } catch (error) {
    if (error instanceof LpqError || (error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
}

function keep(place: string, head: Uint8Array, samples: Uint8Array): void {
  try {
    writeFileSync(`${place}.new`, Buffer.concat([head, samples]));
    renameSync(`${place}.new`, place);
  } catch (cause) {
    throw writeError(place, cause);
  }
}

/** Several at once; the first failure ends it, when those that have begun have ended. */
async function inParallel<T>(items: readonly T[], work: (item: T, index: number) => Promise<void>): Promise<void> {
  let next = 0;
  const failures: unknown[] = [];
  const worker = async () => {
    while (next < items.length && failures.length === 0) {
      const index = next++;
      await work(items[index] as T, index).catch((error: unknown) => failures.push(error));
    }
  };
  await Promise.all(Array.from({ length: Math.min(AT_ONCE, items.length) }, worker));
  if (failures.length > 0) throw failures[0];
}
