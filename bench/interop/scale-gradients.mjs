// Writes what scale_gradients.py compares: ids of four sequences, and of each module its weight as it is stored and the gradient of KL with
// respect to factors of its scales, in f32 or, with LPQ_PRODUCTS=bf16, of bf16 products.
import { CanonicalCheckpoint } from '../../dist/formats/canonical/read.js';
import { SourceCheckpoint } from '../../dist/formats/canonical/source.js';
import { writeSafetensors } from '../../dist/formats/safetensors/write.js';
import { createRuntime, fromTyped } from '../../dist/native/binding.js';
import { batchSequences } from '../../dist/src/model/batch.js';
import { loadOuter } from '../../dist/src/model/forward.js';
import { openModel, planSource } from '../../dist/src/model/graph.js';
import { schemeOfModule } from '../../dist/src/quantize/redo.js';
import { storedModule } from '../../dist/src/quantize/replay.js';
import { SourceView } from '../../dist/src/quantize/source-view.js';
import { Student } from '../../dist/src/tune/scales/student.js';
import { teach } from '../../dist/src/tune/scales/teacher.js';
import { TrainedScales } from '../../dist/src/tune/scales/trained-scales.js';

const [from, quantized, output] = process.argv.slice(2);
const [SEQUENCES, LENGTH] = [4, 64];
const rt = createRuntime({ threads: 1, products: process.env.LPQ_PRODUCTS ?? 'f32' });
const source = new SourceView(SourceCheckpoint.open(from));
const [graph, plan] = [openModel(source), planSource(source)];
const checkpoint = CanonicalCheckpoint.open(quantized);
const modules = new Map(
  checkpoint.moduleNames().map((name) => {
    const module = checkpoint.module(name);
    return [name, storedModule(rt, name, module.shape, schemeOfModule(module), checkpoint)];
  }),
);
const ids = Int32Array.from({ length: SEQUENCES * LENGTH }, (_, i) => (i * i * 7 + 41 * i + 3) % graph.vocab);
const sequences = Array.from({ length: SEQUENCES }, (_, s) => ids.slice(s * LENGTH, (s + 1) * LENGTH));
const [batch] = batchSequences(rt, sequences, ids.length);
const task = { rt, graph, plan, source, modules, sequences, seen: 0, check: () => {} };
const outer = await loadOuter(rt, source, graph);
const [target] = await teach(task, outer, [batch]);
const scales = new Map([...modules].map(([name, module]) => [name, TrainedScales.begin(rt, module)]));
const sum = await new Student(task, scales, outer).gradient(batch, target);
await rt.sync();
const tensors = [
  { name: 'ids', dtype: 'I32', shape: [SEQUENCES, LENGTH], data: ids },
  { name: 'kl', dtype: 'F32', shape: [1], data: Float32Array.of(sum / ids.length) },
];
for (const [name, each] of scales) {
  const weight = each.weight();
  await rt.sync();
  tensors.push({ name: `${name}.weight`, dtype: 'F32', shape: weight.shape, data: weight });
  tensors.push({ name: `${name}.gradient`, dtype: 'F32', shape: each.factors.g.shape, data: each.factors.g });
}
tensors[0].data = fromTyped('i32', tensors[0].shape, ids);
tensors[1].data = fromTyped('f32', [1], tensors[1].data);
await writeSafetensors(output, tensors);
