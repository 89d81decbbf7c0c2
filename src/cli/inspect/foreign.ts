import { CanonicalSource } from '../../../formats/canonical/source.js';
import { type ForeignCheckpoint, openForeign } from '../../../formats/foreign/open.js';
import type { TensorReader } from '../../../formats/safetensors/read.js';
import { createRuntime } from '../../../native/binding.js';
import { LpqError } from '../../core/error.js';
import { printGranularity } from '../../core/granularity.js';
import { openModel, unusedTensors } from '../../model/graph.js';
import type { ModelGraph } from '../../model/program.js';
import { table } from '../terminal/table.js';
import { sum, tensorBytes } from './inspection.js';

/** A quantized module of another tool, as inspect lists it. */
interface ForeignRow {
  readonly name: string;
  readonly type: string;
  readonly shape: readonly [number, number];
  /** Input features that share a scale, or the block of weights [n, k] that the file has one for. */
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
  const opened = openOrProblem(dir);
  if (opened instanceof LpqError) return { modules: [], carried: 0, notes: [], problem: opened };
  try {
    const found = modulesOf(opened, weights);
    const source = CanonicalSource.over(opened.canonical, createRuntime(1));
    try {
      const graph = openModel(source);
      return { ...found, graph, unused: unusedTensors(source, graph) };
    } catch (problem) {
      if (problem instanceof LpqError) return { ...found, problem };
      throw problem;
    }
  } finally {
    opened.canonical.close();
  }
}

/** The modules alone, of what is published in low bits. */
export function inspectModules(dir: string, weights: TensorReader): ForeignInspection {
  const opened = openOrProblem(dir);
  if (opened instanceof LpqError) return { modules: [], carried: 0, notes: [], problem: opened };
  try {
    return modulesOf(opened, weights);
  } finally {
    opened.canonical.close();
  }
}

function openOrProblem(dir: string): ForeignCheckpoint | LpqError {
  try {
    return openForeign(dir);
  } catch (error) {
    if (error instanceof LpqError) return error;
    throw error;
  }
}

function modulesOf(opened: ForeignCheckpoint, weights: TensorReader): ForeignInspection {
  // Fused experts are several modules of one tensor: each counts its share.
  const users = new Map<string, number>();
  for (const { tensors } of opened.modules) for (const name of tensors) users.set(name, (users.get(name) ?? 0) + 1);
  const modules = opened.modules.map(({ name, declaration, tensors, notes, contradictions = [] }): ForeignRow => {
    const { type, shape, granularity, scales, zeros, groupIndex } = declaration;
    const bytes = sum(tensors.map((each) => tensorBytes(weights, each) / (users.get(each) as number)));
    const { stored } = scales;
    return {
      name,
      type,
      shape,
      group:
        stored === undefined || stored === 'tensor' ? (stored ?? printGranularity(granularity)) : stored.join(' x '),
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
  return { modules, carried, notes };
}

/** All bits of these modules, scales and zero points too, by their weights; null without any. */
export function bitsPerWeight(modules: readonly ForeignRow[]): number | null {
  const weights = sum(modules.map(({ shape: [n, k] }) => n * k));
  return weights > 0 ? sum(modules.map((m) => m.bitsPerWeight * m.shape[0] * m.shape[1])) / weights : null;
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
