import { createHash } from 'node:crypto';
import type { SourceCheckpoint } from '../canonical/source.js';
import type { StatisticsManifest } from './schema.js';

/** Of every tensor this much is hashed: a page of it, so that even a large model takes a moment only. */
const SAMPLE_BYTES = 4096;

/**
 * What tells one model from another: the fingerprint of config.json and headers, which a fine-tuned model may share with its
 * base, and the sha256 over name and first 4 KiB of every tensor, in order of names.
 */
export function modelIdentity(source: SourceCheckpoint): StatisticsManifest['model'] {
  const hash = createHash('sha256');
  for (const name of [...source.names()].sort()) {
    const tensor = source.weights.tensor(name);
    try {
      hash.update(`${name}\n`).update(tensor.bytes(0, Math.min(SAMPLE_BYTES, tensor.byteLength)));
    } finally {
      tensor.dispose();
    }
  }
  return {
    name: source.dir.split('/').filter(Boolean).at(-1) ?? '',
    fingerprint: source.weights.fingerprint(),
    sample: hash.digest('hex'),
  };
}
