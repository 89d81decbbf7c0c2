import { artifactSchema } from '../../formats/artifact/schema.js';
import { readManifest } from '../../formats/canonical/read.js';
import { CanonicalSource, directoryKind, openSource } from '../../formats/canonical/source.js';
import { Checkpoint, readConfig } from '../../formats/safetensors/checkpoint.js';
import { createRuntime, type NativeRuntime } from '../../native/binding.js';
import { multipliesCodes } from '../model/packed.js';
import type { WeightSource } from '../model/source.js';
import { isGguf } from '../verify/gguf.js';
import { GgufSource } from './gguf-source.js';
import { PackedSource } from './packed-source.js';
import { replaced } from './replaced.js';

/**
 * A weight source over a directory of any kind: plain, quantized by lpq or another tool, packed, GGUF. On the CPU packed weights are
 * decoded; on a device, and with `kernels` on the CPU too, they are handed out as they lie there, for the kernels that they were packed
 * for. `coded`: for weights that stay in memory; on the CPU, without `kernels`, quantized ones are handed out as codes where it
 * multiplies these. The caller closes it. Throws as openSource and artifactSource.
 */
export async function openWeights(
  dir: string,
  rt: NativeRuntime,
  { kernels = false, coded = false }: { readonly kernels?: boolean | undefined; readonly coded?: boolean } = {},
): Promise<WeightSource & { close(): void }> {
  // Decoding reads files, follows permutations and masks: work of the CPU, whatever computes with the weights.
  const decoder = rt.device === 'cpu' ? rt : createRuntime();
  if (directoryKind(dir) === 'lpq-artifact') {
    const packed = kernels || rt.device !== 'cpu';
    const source = artifactSource(dir, decoder, packed, packed && multipliesCodes(rt));
    if (packed || !coded || !(source instanceof PackedSource)) return source;
    return { ...replaced(source, { packed: (name) => source.coded(name) }), close: () => source.close() };
  }
  const source = openSource(dir, decoder);
  if (rt.device === 'cpu' && coded && source instanceof CanonicalSource) {
    const { codedSource } = await import('./coded.js');
    return codedSource(source, rt);
  }
  if (rt.device === 'cpu' || !multipliesCodes(rt) || !(source instanceof CanonicalSource)) return source;
  const { w4axSource } = await import('./w4ax-source.js');
  return w4axSource(source, decoder);
}

/**
 * A packed directory as a weight source. `kernels`: modules that a packed kernel reads are handed out as they lie there; `codes`: also
 * those whose activations a kernel rounds to codes. Throws LPQ_ARTIFACT, LPQ_CONFIG, LPQ_SAFETENSORS, LPQ_FILE.
 */
export function artifactSource(
  dir: string,
  rt: NativeRuntime,
  kernels = false,
  codes = false,
): PackedSource | GgufSource {
  const manifest = readManifest(dir, artifactSchema, 'LPQ_ARTIFACT');
  if (isGguf(manifest)) return new GgufSource(dir, manifest, rt);
  return new PackedSource([dir, readConfig(dir), manifest, Checkpoint.open(dir)], rt, kernels, codes);
}
