import path from 'node:path';
import { LpqError } from '../../src/core/error.js';
import type { Header } from './header.js';

/** A shard of a checkpoint that is elsewhere: what is known of it before its file comes. */
export interface RemoteShard {
  readonly name: string;
  /** Of the file. */
  readonly bytes: number;
  readonly header: Header;
  /** The file's bytes up to its data. */
  readonly head: Uint8Array;
  /** Bytes of its samplePlaces() (fingerprint.ts). */
  readonly samples: Uint8Array;
}

/** Shards that come when they are needed, and go when they are not (src/stream). */
export interface ShardStream {
  /** In order of their names. */
  readonly shards: readonly RemoteShard[];
  /** Most bytes of shards that are on the disk at once. */
  readonly mostBytes: number;
  /** Whether the shard's file is here, whole. */
  has(shard: RemoteShard): boolean;
  /** Reads from a shard that is here. Throws LPQ_FILE. */
  read(shard: RemoteShard, into: Uint8Array, position: number): void;
  /** The same beside the program, from a shard that stays until it has settled (`need`). Throws LPQ_FILE. */
  fill(shard: RemoteShard, into: Uint8Array, position: number): Promise<void>;
  /** Settles when the shard is here, with what lets it go: it stays until then. Throws what fetching throws. */
  need(shard: RemoteShard): Promise<() => void>;
  /** A tensor, of a file or of a view over it, was read for computing: shards of blocks before it may go, those of the next come. */
  reads(name: string): void;
  /**
   * Calls `take` with every shard that is here, and with each that comes, which stays until that settles; the returned function ends
   * it.
   */
  onArrival(take: (shard: RemoteShard) => Promise<void>): () => void;
}

const streams = new Map<string, ShardStream>();

/** The stream of a directory that stands for a checkpoint elsewhere, in this process; undefined for every other. */
export function streamOf(dir: string): ShardStream | undefined {
  return streams.size === 0 ? undefined : streams.get(path.resolve(dir));
}

/** Makes the weights of `dir` those of a stream. */
export function setStream(dir: string, stream: ShardStream): void {
  streams.set(path.resolve(dir), stream);
}

/** Ends it for every directory. */
export function endStream(stream: ShardStream): void {
  for (const [dir, own] of streams) if (own === stream) streams.delete(dir);
}

/** A tensor was asked for whose shard is not here. */
export class Elsewhere extends LpqError {
  constructor(
    name: string,
    shard: RemoteShard,
    /** ShardStream.need() of it. */
    readonly fetch: () => Promise<() => void>,
  ) {
    super('LPQ_FILE', `'${name}' is in ${shard.name}, which is not on this disk`);
  }
}

/**
 * What a function reads, once all shards that it reads are here: it is called again after each that had to come. Nothing in it may wait,
 * so that whatever is between (views that decode, or merge) need not know of shards.
 */
export async function whenHere<T>(read: () => T): Promise<T> {
  let found = attempt(read);
  for (let tries = 0; found instanceof Elsewhere && tries < 2; tries++) {
    const release = await found.fetch();
    try {
      found = attempt(read);
    } finally {
      release();
    }
  }
  if (!(found instanceof Elsewhere)) return found.value;
  // Of several shards, and others took their room: one such reader at a time, for which they stay.
  const turn = lastTurn.then(() => holding(read));
  lastTurn = turn.catch(() => {});
  return turn;
}

let lastTurn: Promise<unknown> = Promise.resolve();

async function holding<T>(read: () => T): Promise<T> {
  const held: (() => void)[] = [];
  try {
    for (;;) {
      const found = attempt(read);
      if (!(found instanceof Elsewhere)) return found.value;
      held.push(await found.fetch());
    }
  } finally {
    for (const release of held) release();
  }
}

function attempt<T>(read: () => T): { readonly value: T } | Elsewhere {
  try {
    return { value: read() };
  } catch (error) {
    if (error instanceof Elsewhere) return error;
    throw error;
  }
}
