import type { ErrorFacts } from '../../src/core/error.js';
import type { Provenance } from './schema.js';

/**
 * What an error says where a checkpoint is not the one that was recorded; undefined where it is. A fingerprint
 * (safetensors/spec.md) looks at config.json, headers and a sample of every weight.
 */
export function otherSource(
  recorded: Pick<Provenance['source'], 'name' | 'fingerprint'>,
  dir: string,
  fingerprint: string,
): Pick<ErrorFacts, 'got' | 'expected'> | undefined {
  if (recorded.fingerprint === fingerprint) return undefined;
  return {
    got: `${dir}, fingerprint ${fingerprint.slice(0, 12)}`,
    expected: `${recorded.name}, fingerprint ${recorded.fingerprint.slice(0, 12)}`,
  };
}

/** Whether lpq itself quantized it: the provenance of what another tool quantized has the fingerprint of its own directory. */
export function knowsSource({ lpq }: Provenance): boolean {
  return !lpq.includes(':');
}
