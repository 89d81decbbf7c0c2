import type { PackedModule } from '../../formats/artifact/schema.js';
import type { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import { CanonicalSource } from '../../formats/canonical/source.js';
import type { Checkpoint } from '../../formats/safetensors/checkpoint.js';
import { LpqError } from '../core/error.js';
import { architectureOf } from '../model/architectures/index.js';
import { openModel, planSource } from '../model/graph.js';
import type { ModelGraph } from '../model/program.js';
import type { WeightSource } from '../model/source.js';
import type { Recorder } from './report.js';
import type { ArtifactShapes } from './shapes.js';

/** A linear of the model, as a loader that builds it will ask for it. */
export interface Linear {
  readonly name: string;
  /** Its entry, where it is no plain weight. */
  readonly module: PackedModule | undefined;
  readonly head: boolean;
  /** The model's class has it as [K, N]: Conv1D, not Linear. */
  readonly transposed: boolean;
}

export interface ModelLinears {
  readonly linears: ReadonlyMap<string, Linear>;
  /** Paths of the other tensors called NAME.weight: embeddings, norms, convolutions. */
  readonly others: readonly string[];
}

/** Last parts of paths whose matrices are looked up or multiplied elementwise. */
const NO_LINEAR = /embed(?!_out|\w*proj)|^w[tp]e$|norm|^ln_|position|rotary/i;
const FLOATS = ['F64', 'F32', 'F16', 'BF16'];

/**
 * Every linear of an artifact's model: those of its graph, where lpq knows the architecture, and whatever else is a plain
 * matrix (towers for images, routers). What the graph misses in the shards is a difference.
 */
export function modelLinears(
  recorder: Recorder,
  source: ArtifactShapes,
  weights: Checkpoint,
  canonical: CanonicalCheckpoint | undefined,
): ModelLinears {
  const { modules, carried } = source.manifest;
  const ending = headName(source);
  const { graph, head = ending } = openGraph(recorder, source, canonical);
  const linears = new Map<string, Linear>();
  const add = (name: string, transposed = false): void => {
    const module = Object.hasOwn(modules, name) ? modules[name] : undefined;
    const isHead = name === head || `.${name}`.endsWith(`.${ending}`);
    linears.set(name, { name, module, head: isHead, transposed: module?.transposed ?? transposed });
  };
  for (const name of Object.keys(modules)) add(name);
  for (const block of graph?.blocks ?? [])
    for (const { feeds } of block.stages)
      for (const feed of feeds)
        for (const { name, transposed } of feed.linears) if (!linears.has(name)) add(name, transposed);
  const others: string[] = [];
  for (const tensor of Object.keys(carried)) {
    if (!tensor.endsWith('.weight') || !weights.has(tensor)) continue;
    const name = tensor.slice(0, -'.weight'.length);
    if (linears.has(name)) continue;
    const { dtype, shape } = weights.spec(tensor);
    if (shape.length === 2 && FLOATS.includes(dtype) && !NO_LINEAR.test(name.split('.').at(-1) ?? '')) add(name);
    else others.push(name);
  }
  // Tied to the embedding it has no tensor, but loaders build it all the same.
  if (![...linears.values()].some((linear) => linear.head)) add(head);
  return { linears, others };
}

/** What the path of the head ends in: a model of more than text has its language model below another name. */
function headName({ config, dir }: ArtifactShapes): string {
  try {
    return architectureOf(config, dir).names.head;
  } catch (error) {
    if (error instanceof LpqError) return 'lm_head';
    throw error;
  }
}

function opens(source: WeightSource): boolean {
  try {
    return openModel(source) !== undefined;
  } catch (error) {
    if (error instanceof LpqError) return false;
    throw error;
  }
}

/** The graph, where there is one, and the path of the head. */
function openGraph(
  recorder: Recorder,
  source: ArtifactShapes,
  canonical: CanonicalCheckpoint | undefined,
): { readonly graph: ModelGraph | undefined; readonly head?: string } {
  try {
    const { tied, head } = planSource(source);
    const name = tied ? {} : { head: head.name };
    try {
      recorder.count('tensors');
      return { graph: openModel(source), ...name };
    } catch (error) {
      if (!(error instanceof LpqError) || !/^LPQ_TENSOR_/.test(error.code)) throw error;
      const { got, expected } = error;
      if (canonical && !opens(CanonicalSource.over(canonical))) {
        recorder.note(`${error.message}; the quantized checkpoint has the same fault, and no engine can load either`);
        return { graph: undefined, ...name };
      }
      recorder.check(false, {
        check: 'tensors',
        ...(got !== undefined && { got: String(got) }),
        ...(expected !== undefined && { expected: String(expected) }),
        message: error.message,
      });
      return { graph: undefined, ...name };
    }
  } catch (error) {
    if (!(error instanceof LpqError)) throw error;
    // Another tool's checkpoint of a model that lpq cannot run: names and shapes tell which matrices are linears.
    return { graph: undefined };
  }
}
