import { existsSync } from 'node:fs';
import path from 'node:path';
import { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import type { NativeRuntime } from '../../native/binding.js';
import { packCheckpoint } from '../../src/pack/pack-checkpoint.js';
import { type Case, caseName } from './cases.js';
import type { Shelf } from './quantized.js';

/** The artifact of a case, packed when it is asked for, and what it was packed from. */
export async function packedCase(
  shelf: Shelf,
  each: Case,
  runtime: NativeRuntime,
): Promise<{ packed: string; quantized: string }> {
  const quantized = await shelf.quantized(each.variant);
  const packed = path.join(shelf.dir, 'packed', caseName(each).replace(/\W+/g, '-'));
  if (!existsSync(packed)) await packCase(each, quantized, packed, runtime);
  return { packed, quantized };
}

/** Packs a case. Throws as packCheckpoint does. */
export async function packCase(
  { target, ranks, sharded }: Case,
  quantized: string,
  output: string,
  runtime: NativeRuntime,
): Promise<void> {
  const input = CanonicalCheckpoint.open(quantized);
  try {
    await packCheckpoint({
      ...{ input, target, output, runtime },
      ...(ranks && { ranks }),
      ...(sharded && { writer: { maxShardBytes: 400_000 } }),
    });
  } finally {
    input.close();
  }
}
