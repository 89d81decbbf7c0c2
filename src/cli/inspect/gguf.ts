import { statSync } from 'node:fs';
import path from 'node:path';
import { GgufTensors } from '../../../formats/gguf/source/tensors.js';
import { openModel, unusedTensors } from '../../model/graph.js';
import { facts } from '../terminal/table.js';
import { bytes, count } from '../terminal/units.js';
import { type Inspection, sum } from './inspection.js';
import { modelFacts, modelSummary } from './source.js';

/** A model in GGUF that other programs wrote: what its tensors are in the file, and the graph of its checkpoint. */
export function inspectGguf(dir: string, files: readonly string[]): Inspection {
  const weights = GgufTensors.open(files);
  try {
    const { config } = weights.model;
    const source = {
      dir,
      config: { ...config },
      names: () => weights.names(),
      has: (name: string) => weights.has(name),
      shape: (name: string) => weights.shape(name),
      tensor: async (name: string) => weights.tensor(name),
    };
    const graph = openModel(source);
    const model = modelSummary(graph, unusedTensors(source, graph));
    const types: Record<string, { tensors: number; parameters: number; bytes: number }> = {};
    for (const { type, shape, bytes: size } of weights.file.tensors.values()) {
      types[type.name] ??= { tensors: 0, parameters: 0, bytes: 0 };
      const row = types[type.name] as { tensors: number; parameters: number; bytes: number };
      row.tensors++;
      row.parameters += shape.reduce((a, b) => a * b, 1);
      row.bytes += size;
    }
    const rows = Object.entries(types);
    const parameters = sum(rows.map(([, row]) => row.parameters));
    const shards = files.map((file) => ({ file: path.basename(file), bytes: statSync(file).size }));
    const text = facts([
      ['kind', 'source checkpoint in GGUF'],
      ...modelFacts(model),
      ['file', shards.map(({ file }) => file).join(', ')],
      ['parameters', `${parameters.toLocaleString('en')} (${count(parameters)})`],
      [
        'tensors',
        `${weights.file.tensors.size}: ${rows.map(([type, row]) => `${type} ${row.tensors} (${bytes(row.bytes)})`).join(', ')}`,
      ],
      ['size', bytes(sum(shards.map((shard) => shard.bytes)))],
    ]);
    const data = {
      kind: 'source',
      container: 'gguf',
      dir,
      tensors: weights.file.tensors.size,
      parameters,
      bytes: sum(rows.map(([, row]) => row.bytes)),
      shards,
      dtypes: types,
      model,
    };
    return { data, text };
  } finally {
    weights.close();
  }
}
