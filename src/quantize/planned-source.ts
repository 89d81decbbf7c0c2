import { SourceCheckpoint, type SourceTensors } from '../../formats/canonical/source.js';
import { namesWithoutShards, readConfig } from '../../formats/safetensors/checkpoint.js';
import { type SafetensorsDtype, tensorBytes } from '../../formats/safetensors/dtypes.js';
import type { TensorEntry } from '../../formats/safetensors/header.js';
import type { Tensor } from '../../native/binding.js';
import { LpqError } from '../core/error.js';
import { textOf } from '../core/text-of.js';
import { buildGraph, planSource } from '../model/graph.js';
import type { ModelGraph } from '../model/program.js';
import type { WeightShapes } from '../model/source.js';

/**
 * The checkpoint of a directory; where it has a config.json and no weights yet, one whose tensors are those that the config demands: every
 * name and shape, no bytes. An index alone says how names are spelled. Throws as SourceCheckpoint.open, LPQ_ARCH_UNKNOWN.
 */
export function openOrPlan(dir: string): SourceCheckpoint {
  const names = namesWithoutShards(dir);
  return names ? SourceCheckpoint.over(dir, readConfig(dir), plannedTensors(dir, names)) : SourceCheckpoint.open(dir);
}

/** Whether a source is a plan alone. */
export function isPlan({ weights }: SourceCheckpoint): boolean {
  return weights instanceof PlannedTensors;
}

/** Names of an index that no plan has: towers, codes and scales of what is published in low bits. */
export function beyondPlan({ weights }: SourceCheckpoint): readonly string[] {
  return weights instanceof PlannedTensors ? weights.beyond : [];
}

function plannedTensors(dir: string, index: ReadonlySet<string>): PlannedTensors {
  const config = readConfig(dir);
  const spelled: WeightShapes = { dir, config, names: () => index, has: (name) => index.has(name), shape: () => [] };
  const plan = planSource(spelled);
  const graph = buildGraph({ ...plan, blocks: [...plan.blocks, ...plan.predictions] });
  return new PlannedTensors(dir, graph, dtypeOf(config), index);
}

/** What a config says that its weights are; bf16 where it does not, or says a type of codes. */
function dtypeOf(config: Readonly<Record<string, unknown>>): SafetensorsDtype {
  const text = config.text_config as Record<string, unknown> | undefined;
  const named = [config, text ?? {}].flatMap(({ dtype, torch_dtype: older }) => [dtype, older]);
  const short: Readonly<Record<string, SafetensorsDtype>> = { bfloat16: 'BF16', float16: 'F16', float32: 'F32' };
  return named.map((name) => short[textOf(name)]).find((found) => found !== undefined) ?? 'BF16';
}

class PlannedTensors implements SourceTensors {
  private readonly entries = new Map<string, TensorEntry>();
  readonly beyond: readonly string[];

  constructor(
    readonly path: string,
    graph: ModelGraph,
    dtype: SafetensorsDtype,
    index: ReadonlySet<string>,
  ) {
    for (const tensors of [graph.outer, ...graph.blocks.map((block) => block.tensors)])
      for (const [name, shape] of tensors) {
        const stored = graph.transposed.has(name) ? [...shape].reverse() : shape;
        this.entries.set(name, { name, dtype, shape: stored, begin: 0, end: Number(tensorBytes(dtype, stored)) });
      }
    const modules = new Set([...this.entries.keys()].map((name) => name.replace(/\.[^.]+$/, '')));
    this.beyond = [...index].filter((name) => !modules.has(name.replace(/\.[^.]+$/, '')));
  }

  names(): Iterable<string> {
    return this.entries.keys();
  }

  has(name: string): boolean {
    return this.entries.has(name);
  }

  spec(name: string): TensorEntry {
    const entry = this.entries.get(name);
    if (entry) return entry;
    throw new LpqError('LPQ_TENSOR_MISSING', `the plan of ${this.path} has no tensor '${name}'`);
  }

  dtype(name: string): SafetensorsDtype {
    return this.spec(name).dtype;
  }

  shape(name: string): readonly number[] {
    return this.spec(name).shape;
  }

  tensor(name: string): Tensor {
    throw new LpqError('LPQ_FILE', `${this.path} holds no weights: '${name}' has a shape but no values`, {
      hint: 'Download the weights into the directory; without them only --dry-run works.',
    });
  }

  advise(): void {}

  fingerprint(): string {
    return 'plan';
  }

  close(): void {}
}
