import { CanonicalSource } from '../../formats/canonical/source.js';
import { openForeign } from '../../formats/foreign/open.js';
import type { TensorReader } from '../../formats/safetensors/read.js';
import { createRuntime } from '../../native/binding.js';
import { LpqError } from '../core/error.js';
import { printGranularity } from '../core/granularity.js';
import { openModel, unusedTensors } from '../model/graph.js';
import type { ModelGraph } from '../model/program.js';
import { sum, tensorBytes } from './inspection.js';
import { table } from './table.js';

/** A quantized module of another tool, as inspect lists it. */
interface ForeignRow {
  readonly name: string;
  readonly type: string;
  readonly shape: readonly [number, number];
  readonly group: string;
  readonly scales: string;
  readonly zeros: string;
  readonly actOrder: boolean;
  readonly bitsPerWeight: number;
  readonly notes: readonly string[];
}

export interface ForeignInspection {
  readonly modules: readonly ForeignRow[];
  /** Elements of the tensors that belong to no module. */
  readonly carried: number;
  /** What the settings state wrongly, or what is worth a sentence; each with how many modules it concerns. */
  readonly notes: readonly string[];
  readonly graph?: ModelGraph;
  readonly unused?: readonly string[];
  /** Why the modules, or the model's graph, cannot be read. */
  readonly problem?: LpqError;
}

/** The modules that another tool quantized, and the graph that they belong to, as far as both can be read. */
export function inspectForeign(dir: string, weights: TensorReader): ForeignInspection {
  let opened: ReturnType<typeof openForeign>;
  try {
    opened = openForeign(dir);
  } catch (error) {
    if (error instanceof LpqError) return { modules: [], carried: 0, notes: [], problem: error };
    throw error;
  }
  try {
    // Fused experts are several modules of one tensor: each counts its share.
    const users = new Map<string, number>();
    for (const { tensors } of opened.modules) for (const name of tensors) users.set(name, (users.get(name) ?? 0) + 1);
    const modules = opened.modules.map(({ name, declaration, tensors, notes, contradictions = [] }): ForeignRow => {
      const { type, shape, granularity, scales, zeros, groupIndex } = declaration;
      const bytes = sum(tensors.map((each) => tensorBytes(weights, each) / (users.get(each) as number)));
      return {
        name,
        type,
        shape,
        group: printGranularity(granularity),
        scales: scales.dtype,
        zeros: zeros.kind,
        actOrder: groupIndex,
        bitsPerWeight: (8 * bytes) / (shape[0] * shape[1]),
        notes: [...contradictions, ...notes],
      };
    });
    const carried = sum(
      [...weights.names()]
        .filter((name) => !users.has(name))
        .map((name) => weights.shape(name).reduce((a, b) => a * b, 1)),
    );
    const counts = new Map<string, number>();
    for (const { notes } of modules) for (const note of notes) counts.set(note, (counts.get(note) ?? 0) + 1);
    const notes = [...counts].map(([note, times]) => `${times} of ${modules.length} modules: ${note}`);
    const source = CanonicalSource.over(opened.canonical, createRuntime(1));
    try {
      const graph = openModel(source);
      return { modules, carried, notes, graph, unused: unusedTensors(source, graph) };
    } catch (problem) {
      if (problem instanceof LpqError) return { modules, carried, notes, problem };
      throw problem;
    }
  } finally {
    opened.canonical.close();
  }
}

export function foreignTable(modules: readonly ForeignRow[]): string {
  return table(
    ['module', 'type', 'shape', 'group', 'scales', 'zeros', 'bits/weight'],
    modules.map((m) => [
      m.name,
      m.type,
      m.shape.join(' x '),
      m.actOrder ? `${m.group} act-order` : m.group,
      m.scales,
      m.zeros,
      m.bitsPerWeight.toFixed(3),
    ]),
  );
}
