import { createHash, type Hash } from 'node:crypto';
import { closeSync, openSync, readSync } from 'node:fs';
import { tell } from '../../src/core/activity.js';
import { LpqError } from '../../src/core/error.js';
import type { Header } from './header.js';
import type { SafetensorsFile } from './read.js';

/** Bytes of a piece, pieces of a tensor at most, and pieces of a checkpoint where it has fewer tensors than that. */
const PIECE = 1024;
const PIECES = 8;
const READS = 4096;

/**
 * Tells two checkpoints apart without reading all of them: sha256 over `config` (the text of config.json), then of each shard, in order
 * of name, its bytes up to the data, then a sample of each tensor, in order of the bytes. Weights differ nearly everywhere
 * where a model was trained further, so a few pieces of every tensor tell it from its base, which has the same config.json and
 * the same headers. Read by offsets rather than through the mapping, which would read ahead around every piece. spec.md has
 * the pieces. Throws LPQ_FILE.
 */
export function fingerprintOf(config: string, files: readonly SafetensorsFile[]): string {
  const hash = begun(
    config,
    files.map((file) => file.headerBytes()),
  );
  const pieces = piecesOf(files);
  for (const file of files) sample(file, pieces, hash);
  return hash.digest('hex');
}

/** The same of shards that are elsewhere: of each its bytes up to the data, and those of its samplePlaces() in their order. */
export function fingerprintFrom(
  config: string,
  shards: readonly { readonly head: Uint8Array; readonly samples: Uint8Array }[],
): string {
  const hash = begun(
    config,
    shards.map(({ head }) => head),
  );
  for (const { samples } of shards) hash.update(samples);
  return hash.digest('hex');
}

/** Pieces of each tensor of a checkpoint with these shards. */
export function piecesOf(shards: readonly { readonly header: Header }[]): number {
  const tensors = shards.reduce((sum, { header }) => sum + header.tensors.length, 0);
  return Math.max(1, Math.min(PIECES, Math.floor(READS / tensors)));
}

/** A piece of a tensor; `at` in bytes from the start of the file. */
export interface Piece {
  readonly name: string;
  readonly at: number;
  readonly length: number;
}

/** What is read of a shard, in the order in which it is hashed. */
export function* samplePlaces({ tensors, dataStart }: Header, pieces: number): Generator<Piece> {
  for (const { name, begin, end } of tensors)
    for (const [at, length] of places(end - begin, pieces)) yield { name, at: dataStart + begin + at, length };
}

function begun(config: string, heads: readonly Uint8Array[]): Hash {
  const hash = createHash('sha256').update(config);
  for (const head of heads) hash.update(head);
  return hash;
}

function sample({ path, header }: SafetensorsFile, pieces: number, hash: Hash): void {
  const fd = openSync(path, 'r');
  const buffer = Buffer.alloc(PIECE * pieces);
  try {
    for (const { name, at, length } of samplePlaces(header, pieces)) {
      tell(`sampling ${name}`);
      const got = readSync(fd, buffer, 0, length, at);
      if (got !== length) throw new LpqError('LPQ_FILE', `${path} became shorter while lpq read it`);
      hash.update(buffer.subarray(0, length));
    }
  } finally {
    closeSync(fd);
  }
}

/** Where the pieces of a tensor begin, and their lengths: from its first byte to its last; the middle where there is one. */
function places(bytes: number, pieces: number): (readonly [at: number, length: number])[] {
  if (bytes === 0) return [];
  if (bytes <= PIECE * pieces) return [[0, bytes]];
  if (pieces === 1) return [[Math.floor((bytes - PIECE) / 2), PIECE]];
  return Array.from({ length: pieces }, (_, i) => [Math.floor((i * (bytes - PIECE)) / (pieces - 1)), PIECE] as const);
}
