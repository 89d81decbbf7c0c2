import { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import { writeSafetensors } from '../../formats/safetensors/write.js';
import { createRuntime, typed } from '../../native/binding.js';
import { artifactSource } from '../../src/artifact/open.js';

/** FILE: MODULE.weight, in f32, of every quantized linear of the checkpoint `quantized`, as lpq's verifier decodes `packed`. */
export async function writeDecoded(quantized: string, packed: string, file: string): Promise<void> {
  const checkpoint = CanonicalCheckpoint.open(quantized);
  const modules = checkpoint.moduleNames();
  checkpoint.close();
  const artifact = artifactSource(packed, createRuntime(1));
  const weights: Parameters<typeof writeSafetensors>[1][number][] = [];
  for (const module of modules) {
    const tensor = await artifact.tensor(`${module}.weight`);
    const data = Float32Array.from(typed<Float32Array>(tensor));
    weights.push({ name: `${module}.weight`, dtype: 'F32', shape: [...tensor.shape], data });
    tensor.dispose();
  }
  artifact.close();
  await writeSafetensors(file, weights);
}
