import { writeFile } from 'node:fs/promises';
import { writeError } from '../directory/write-error.js';
import { text, u32 } from '../gguf/metadata.js';
import { GgufWriter } from '../gguf/write.js';
import type { Importance, ImportanceEntry } from './importance.js';

/** Writes llama-imatrix's current form, or its older one if the name ends in .dat. Throws LPQ_OUTPUT_WRITE, LPQ_DISK_FULL. */
export async function writeImportance(file: string, importance: Importance): Promise<void> {
  if (!file.endsWith('.dat')) return writeGguf(file, importance);
  try {
    await writeFile(file, legacy(importance), { flag: 'wx' });
  } catch (cause) {
    throw writeError(file, cause);
  }
}

async function writeGguf(file: string, { entries, chunks, chunkSize, datasets }: Importance): Promise<void> {
  const tensors = [...entries].flatMap(([name, { sums, counts }]) => {
    const [matrices, k] = [counts.length, sums.length / counts.length];
    return [
      { name: `${name}.in_sum2`, type: 'f32' as const, shape: matrices > 1 ? [matrices, k] : [k], data: sums },
      { name: `${name}.counts`, type: 'f32' as const, shape: matrices > 1 ? [matrices, 1] : [1], data: counts },
    ];
  });
  const metadata = new Map([
    ['general.type', text('imatrix')],
    ['imatrix.datasets', { type: 'strings', value: datasets } as const],
    ['imatrix.chunk_count', u32(chunks)],
    ['imatrix.chunk_size', u32(chunkSize)],
  ]);
  const writer = await GgufWriter.create(file, metadata, tensors);
  try {
    for (const { name, data } of tensors) await writer.write(name, data);
    await writer.finish();
  } catch (error) {
    await writer.abort();
    throw error;
  }
}

/** Mean squares times the number of calls, which an entry has once: its tokens, or for experts their mean. */
function legacy({ entries, chunks, datasets }: Importance): Buffer {
  const i32 = (value: number): Buffer => {
    const bytes = Buffer.alloc(4);
    bytes.writeInt32LE(value);
    return bytes;
  };
  const string = (value: string): Buffer[] => [i32(Buffer.byteLength(value)), Buffer.from(value)];
  const parts = [...entries].flatMap(([name, entry]) => {
    const { sums } = entry;
    const calls = Math.max(1, Math.round(entry.counts.reduce((a, b) => a + b, 0) / entry.counts.length));
    const values = meansOf(entry).map((mean) => mean * calls);
    return [...string(name), i32(calls), i32(sums.length), Buffer.from(values.buffer)];
  });
  return Buffer.concat([i32(entries.size), ...parts, i32(chunks), ...string(datasets.join(', '))]);
}

/** 1 for a matrix that saw no token, as in llama.cpp. */
function meansOf({ sums, counts }: ImportanceEntry): Float32Array<ArrayBuffer> {
  const k = sums.length / counts.length;
  return Float32Array.from(sums, (sum, i) => {
    const count = counts[Math.floor(i / k)] as number;
    return count > 0 ? sum / count : 1;
  });
}
