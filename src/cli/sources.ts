import type { NativeRuntime } from '../../native/binding.js';
import type { WeightSource } from '../model/source.js';

/** A weight source over a directory of any kind: plain, quantized or packed. The caller closes it. */
export async function openAnySource(dir: string, rt: NativeRuntime): Promise<WeightSource & { close(): void }> {
  const { directoryKind, openSource } = await import('../../formats/canonical/source.js');
  if (directoryKind(dir) !== 'lpq-artifact') return openSource(dir, rt);
  const { artifactSource } = await import('../verify/source.js');
  return artifactSource(dir, rt);
}
