import { createHash, type Hash } from 'node:crypto';
import { closeSync, openSync, readSync } from 'node:fs';
import { tell } from '../../src/core/activity.js';
import { LpqError } from '../../src/core/error.js';
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
  const hash = createHash('sha256').update(config);
  for (const file of files) hash.update(file.headerBytes());
  const tensors = files.reduce((sum, { header }) => sum + header.tensors.length, 0);
  const pieces = Math.max(1, Math.min(PIECES, Math.floor(READS / tensors)));
  for (const file of files) sample(file, pieces, hash);
  return hash.digest('hex');
}

function sample({ path, header }: SafetensorsFile, pieces: number, hash: Hash): void {
  const fd = openSync(path, 'r');
  const buffer = Buffer.alloc(PIECE * pieces);
  try {
    for (const { name, begin, end } of header.tensors) {
      tell(`sampling ${name}`);
      for (const [at, length] of places(end - begin, pieces)) {
        const got = readSync(fd, buffer, 0, length, header.dataStart + begin + at);
        if (got !== length) throw new LpqError('LPQ_FILE', `${path} became shorter while lpq read it`);
        hash.update(buffer.subarray(0, length));
      }
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
