import path from 'node:path';
import { SafetensorsFile } from '../../formats/safetensors/read.js';
import { SafetensorsWriter } from '../../formats/safetensors/write.js';
import { allocate, type NativeRuntime, readTyped, type Tensor, typed } from '../../native/binding.js';
import { tell } from '../core/activity.js';
import { LpqError } from '../core/error.js';
import { openModel } from '../model/graph.js';
import type { ModelGraph } from '../model/program.js';
import type { WeightSource } from '../model/source.js';
import { eachBatch } from './pass.js';

/** Token ids of B sequences of T tokens, row-major. */
export interface TokenGrid {
  readonly ids: Int32Array;
  readonly shape: readonly [rows: number, length: number];
}

/**
 * logits f32 [B,T,V]; the caller disposes of the result. Throws LPQ_CONFIG for tokens outside the vocabulary, and what
 * openModel throws.
 */
export async function logitsOf(rt: NativeRuntime, source: WeightSource, grid: TokenGrid): Promise<Tensor> {
  const graph = openModel(source);
  const all = allocate('f32', [...grid.shape, graph.vocab]);
  const values = typed(all);
  await eachSequence(rt, source, graph, grid, async (row, logits) => {
    values.set(await readTyped(rt, logits), row * grid.shape[1] * graph.vocab);
  });
  return all;
}

/**
 * `lpq logits`: reads `input_ids` (I32 or I64 [B,T] or [T]) from a safetensors file and writes `logits` F32 [B,T,V]
 * into another, one sequence's logits in memory at a time. Throws LPQ_TENSOR_MISSING, LPQ_DTYPE, LPQ_TENSOR_SHAPE about
 * the ids, LPQ_USAGE, LPQ_OUTPUT_EXISTS, LPQ_OUTPUT_WRITE, LPQ_DISK_FULL about the output, and what openModel throws.
 */
export async function writeLogits(
  rt: NativeRuntime,
  source: WeightSource,
  idsFile: string,
  output: string,
): Promise<readonly [number, number, number]> {
  const grid = readIds(idsFile);
  const graph = openModel(source);
  if (!output.endsWith('.safetensors'))
    throw new LpqError('LPQ_USAGE', `the output ${output} must end in .safetensors`, { got: path.basename(output) });
  const shape = [...grid.shape, graph.vocab] as const;
  const writer = await SafetensorsWriter.create(path.dirname(output), [{ name: 'logits', dtype: 'F32', shape }], {
    stem: path.basename(output, '.safetensors'),
    maxShardBytes: Number.POSITIVE_INFINITY,
  });
  try {
    await eachSequence(rt, source, graph, grid, async (row, logits) => {
      const rows = await rt.download(logits);
      await writer.writeRows('logits', row, rows);
      rows.dispose();
    });
    await writer.finish();
  } catch (error) {
    await writer.abort();
    throw error;
  }
  return shape;
}

/** Reads `input_ids`. Throws LPQ_TENSOR_MISSING, LPQ_DTYPE, LPQ_TENSOR_SHAPE, and what the reader throws. */
export function readIds(file: string): TokenGrid {
  const reader = SafetensorsFile.open(file);
  try {
    const { dtype, shape } = reader.spec('input_ids');
    const [rows, length] = shape.length === 1 ? [1, ...shape] : shape;
    if (rows === undefined || length === undefined || shape.length > 2 || rows * length === 0)
      throw new LpqError('LPQ_TENSOR_SHAPE', `'input_ids' of ${file} has no usable shape`, {
        got: `[${shape.join(', ')}]`,
        expected: '[B, T] or [T], neither of them 0',
      });
    if (dtype !== 'I32' && dtype !== 'I64')
      throw new LpqError('LPQ_DTYPE', `'input_ids' of ${file} are not integers that lpq reads`, {
        got: dtype,
        expected: 'I32 or I64',
      });
    const tensor = reader.tensor('input_ids');
    const ids = dtype === 'I32' ? typed<Int32Array>(tensor) : Array.from(typed<BigInt64Array>(tensor), Number);
    const copy = Int32Array.from(ids);
    tensor.dispose();
    return { ids: copy, shape: [rows, length] };
  } finally {
    reader.close();
  }
}

/** Calls `use` with logits f32 [T,V], on the runtime's device, of each sequence in turn, enqueued but not waited for, and disposes of them. */
async function eachSequence(
  rt: NativeRuntime,
  source: WeightSource,
  graph: ModelGraph,
  { ids, shape: [rows, length] }: TokenGrid,
  use: (row: number, logits: Tensor) => Promise<void>,
): Promise<void> {
  const sequences = Array.from({ length: rows }, (_, row) => ids.slice(row * length, (row + 1) * length));
  let row = 0;
  await eachBatch(rt, source, graph, sequences, async ({ h }, outer, { tokens }) => {
    for (let first = 0; first < tokens; first += length) {
      const part = h.view([length, graph.hidden], first * graph.hidden);
      tell('logits of sequence', row, rows);
      const logits = graph.logits(rt, outer, part);
      part.dispose();
      await use(row++, logits);
      logits.dispose();
    }
  });
}
