import assert from 'node:assert/strict';
import { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import type { NativeRuntime } from '../../../native/binding.js';
import type { Quantizer } from '../../../src/quantize/quantizer.js';
import { quantizeCheckpoint } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';

/** Words of a generator: any text would do. */
export function sequences(count: number, length: number): Int32Array[] {
  let state = 11;
  const next = () => {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0;
    return (state >>> 8) % 2048;
  };
  return Array.from({ length: count }, () => Int32Array.from({ length }, next));
}

/** Quantizes the first two blocks of a model to 4 bits with the devices; returns the hashes of its modules. */
export async function quantizeOver(
  rts: readonly NativeRuntime[],
  source: string,
  output: string,
  list: readonly Int32Array[],
  quantizer: Quantizer,
  groupSize = 64,
) {
  const length = (list[0] as Int32Array).length;
  const summary = await quantizeCheckpoint(rts, {
    source,
    output,
    scheme: schemeFromOptions({ bits: 4, groupSize }),
    rules: [{ match: /layers\.[23]\./, scheme: 'skip' }],
    quantizer,
    calibration: {
      name: 'made',
      sha256: '0'.repeat(64),
      seed: 0,
      length,
      kind: 'windows',
      sequences: list,
      tokens: list.length * length,
      available: list.length,
    },
    lmHead: false,
    options: {},
    version: 'test',
  });
  const checkpoint = CanonicalCheckpoint.open(output);
  assert.deepEqual(await checkpoint.verifyHashes(), []);
  const modules = Object.entries(checkpoint.manifest.modules).map(([key, { sha256 }]) => [key, sha256] as const);
  return { summary, hashes: Object.fromEntries(modules) };
}
