import { LpqError } from '../../src/core/error.js';
import { anyGgufName } from '../gguf/names.js';
import type { SavedStatistics } from '../statistics/read.js';
import type { Importance, ImportanceEntry } from './importance.js';

/**
 * The diagonals of saved second moments: the sums of squares of the inputs of linears. Throws LPQ_IMATRIX if GGUF has no tensor for any
 * linear, and LPQ_STATISTICS.
 */
export async function importanceOf(statistics: SavedStatistics): Promise<Importance> {
  const { feeds, calibration } = statistics.manifest;
  const parts = new Map<string, Map<number, { sums: Float32Array; rows: number }>>();
  for (const [feed, { linears, rows }] of Object.entries(feeds)) {
    const sums = await statistics.diagonal(feed);
    for (const linear of linears) {
      const place = anyGgufName(linear);
      if (!place) continue;
      const stack = parts.get(place.name) ?? new Map();
      parts.set(place.name, stack.set(place.expert ?? 0, { sums, rows }));
    }
  }
  if (parts.size === 0)
    throw new LpqError('LPQ_IMATRIX', `no linear of ${statistics.dir} has a place in GGUF`, {
      hint: 'Importance matrices are for models that lpq pack --target gguf takes.',
    });
  const entries = new Map<string, ImportanceEntry>();
  for (const [name, stack] of parts) {
    const ordered = [...stack].sort(([a], [b]) => a - b).map(([, part]) => part);
    const k = (ordered[0] as { sums: Float32Array }).sums.length;
    const sums = new Float32Array(k * ordered.length);
    for (const [i, part] of ordered.entries()) sums.set(part.sums, i * k);
    entries.set(name, { sums, counts: Float32Array.from(ordered, ({ rows }) => rows) });
  }
  return {
    entries,
    chunks: calibration.sequences,
    chunkSize: calibration.length,
    datasets: calibration.files?.map(({ name }) => name) ?? [calibration.name],
  };
}
