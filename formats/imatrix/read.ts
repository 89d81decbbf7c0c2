import { closeSync, existsSync, openSync, readSync, statSync } from 'node:fs';
import { typed } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import { readRegular } from '../directory/read-file.js';
import { GgufFile } from '../gguf/read.js';
import { SavedStatistics } from '../statistics/read.js';
import { importanceOf } from './from-statistics.js';
import type { Importance, ImportanceEntry } from './importance.js';

const HINT = 'Make one with lpq quantize MODEL --save-stats DIR --save-imatrix FILE, or with llama-imatrix.';

/**
 * An importance matrix: a GGUF file of llama-imatrix, one in its older form (.dat), or a directory of saved statistics. Throws
 * LPQ_IMATRIX, LPQ_STATISTICS.
 */
export async function readImportance(place: string): Promise<Importance> {
  if (!existsSync(place)) bad(`${place} does not exist`);
  if (statSync(place).isDirectory()) {
    const statistics = SavedStatistics.open(place);
    try {
      return await importanceOf(statistics);
    } finally {
      statistics.close();
    }
  }
  return magicOf(place) === 'GGUF' ? fromGguf(place) : fromLegacy(place, readRegular(place));
}

function magicOf(file: string): string {
  const bytes = Buffer.alloc(4);
  const handle = openSync(file, 'r');
  try {
    readSync(handle, bytes, 0, 4, 0);
  } finally {
    closeSync(handle);
  }
  return bytes.toString('latin1');
}

/** Tensors NAME.in_sum2 [K, matrices] and NAME.counts [1, matrices], F32, fastest first. */
function fromGguf(place: string): Importance {
  const file = openGguf(place);
  try {
    const number = (key: string): number => {
      const found = file.metadata.get(key);
      return found?.type === 'u32' ? found.value : 0;
    };
    const entries = new Map<string, ImportanceEntry>();
    for (const full of file.names().filter((name) => name.endsWith('.in_sum2'))) {
      const name = full.slice(0, -'.in_sum2'.length);
      if (!file.has(`${name}.counts`)) bad(`${place} has no '${name}.counts'`);
      const [sums, counts] = [full, `${name}.counts`].map((tensor) => {
        if (file.matrix(tensor).type.name !== 'f32') bad(`'${tensor}' of ${place} is not F32`);
        const stored = file.tensor(tensor);
        const values = Float32Array.from(typed<Float32Array>(stored));
        stored.dispose();
        return values;
      }) as [Float32Array, Float32Array];
      entries.set(name, checked(place, name, { sums, counts }));
    }
    if (entries.size === 0) bad(`${place} is a GGUF file without sums of squares (NAME.in_sum2)`);
    const datasets = file.metadata.get('imatrix.datasets');
    return {
      entries,
      chunks: number('imatrix.chunk_count'),
      chunkSize: number('imatrix.chunk_size'),
      datasets: datasets?.type === 'strings' ? datasets.value : [],
    };
  } finally {
    file.close();
  }
}

function openGguf(place: string): GgufFile {
  try {
    return GgufFile.open(place);
  } catch (cause) {
    if (!(cause instanceof LpqError)) throw cause;
    throw new LpqError('LPQ_IMATRIX', `${place} is not an importance matrix: ${cause.message}`, { cause, hint: HINT });
  }
}

/**
 * i32 entries; of each i32 length, name, i32 calls, i32 values, f32 values (mean squares times calls); then i32 chunks and i32 length,
 * the text's name, which the oldest files lack.
 */
function fromLegacy(place: string, bytes: Buffer): Importance {
  let at = 0;
  const i32 = (): number => {
    if (at + 4 > bytes.length) bad(`${place} is cut short`, `${bytes.length} bytes`);
    at += 4;
    return bytes.readInt32LE(at - 4);
  };
  const take = (length: number): Buffer => {
    if (length < 0 || at + length > bytes.length) bad(`${place} is not an importance matrix, or is cut short`, length);
    at += length;
    return bytes.subarray(at - length, at);
  };
  const count = i32();
  if (count < 1 || count > 2 ** 20) bad(`${place} is not an importance matrix`, `${count} entries`);
  const entries = new Map<string, ImportanceEntry>();
  for (let i = 0; i < count; i++) {
    const name = take(i32()).toString('utf8');
    const [calls, values] = [i32(), i32()];
    const data = take(4 * values);
    const sums = Float32Array.from({ length: values }, (_, v) => data.readFloatLE(4 * v));
    entries.set(name, checked(place, name, { sums, counts: Float32Array.of(calls) }));
  }
  const more = at < bytes.length;
  const chunks = more ? i32() : 0;
  const dataset = more && at < bytes.length ? take(i32()).toString('utf8') : '';
  if (at !== bytes.length) bad(`${place} has bytes after its end`, `${bytes.length - at} bytes more`);
  return { entries, chunks, chunkSize: 0, datasets: dataset ? [dataset] : [] };
}

function checked(place: string, name: string, entry: ImportanceEntry): ImportanceEntry {
  const { sums, counts } = entry;
  const fine = (value: number) => Number.isFinite(value) && value >= 0;
  if (sums.length === 0 || counts.length === 0 || sums.length % counts.length !== 0)
    bad(`'${name}' of ${place} has ${sums.length} sums and ${counts.length} counts`);
  const wrong = [...sums, ...counts].find((value) => !fine(value));
  if (wrong !== undefined) bad(`'${name}' of ${place} holds numbers that are not sums of squares`, wrong);
  return entry;
}

function bad(what: string, got?: string | number): never {
  throw new LpqError('LPQ_IMATRIX', what, { ...(got !== undefined && { got }), hint: HINT });
}
