import type { ArtifactManifest, PackedModule } from '../../formats/artifact/schema.js';
import { compareNatural } from '../../formats/canonical/order.js';
import type { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import { ggufOrder } from '../../formats/gguf/names.js';
import type { GgufFile } from '../../formats/gguf/read.js';
import { scalarNames } from '../../formats/gguf/scalars.js';
import type { Carried } from '../model/gguf/carried.js';
import { stateGroups } from '../model/gguf/facts.js';
import type { GgufModel } from '../model/gguf/model.js';
import { buildGraph } from '../model/graph.js';
import { blockTypeOf, factsOfCanonical, factsOfPacked } from './gguf-forms.js';
import type { HeaderTensor } from './gguf-header.js';
import { checkpointNames, expectedRope, fixOf, isOfRows, isPadded, storedName } from './gguf-tables.js';

/** One weight of the checkpoint and how the file must hold it. */
export interface ExpectedWeight {
  /** In the file, the slice of experts included. */
  readonly stored: string;
  /** As matrices are written: [rows, columns] or [elements]; undefined where nothing says. */
  readonly shape: readonly number[] | undefined;
  /** Types that it may have: one, but for plain floats whose dtype is not at hand. */
  readonly types: readonly string[];
  /** A row of the tensor. */
  readonly row?: true;
  /** The quantized module that it is the weight of. */
  readonly module?: string;
}

export interface ExpectedTensors {
  /** By the checkpoint's name. */
  readonly weights: ReadonlyMap<string, ExpectedWeight>;
  /** What the model needs and nothing provides, or in another shape; one sentence each. */
  readonly problems: readonly string[];
}

const PLAIN = ['f32', 'f16', 'bf16'];

/** The file's type of a float dtype; undefined for what is no float. */
function plainOf(dtype: string): string | undefined {
  return { F32: 'f32', F64: 'f32', F16: 'f16', BF16: 'bf16' }[dtype];
}

/**
 * Every weight that the file must hold: those of the quantized checkpoint, or without one those that lpq.json lists; and all
 * that the model of config.json needs.
 */
export function expectedTensors(
  model: GgufModel,
  manifest: ArtifactManifest,
  from: { readonly canonical: CanonicalCheckpoint; readonly carried: Carried } | undefined,
  file: GgufFile,
): ExpectedTensors {
  const { outer, blocks } = buildGraph(model.plan);
  const needed = new Map([outer, ...blocks.map(({ tensors }) => tensors)].flatMap((tensors) => [...tensors]));
  const weights = new Map<string, ExpectedWeight>();
  const add = (name: string, weight: Omit<ExpectedWeight, 'stored'>): void => {
    const place = storedName(model, name);
    if (!place) return;
    const row = isOfRows(model.names, place.tensor) && place.slice !== undefined;
    weights.set(name, { ...weight, ...(row && { row }), stored: row ? place.tensor : sliceName(place) });
  };
  for (const [name, module] of moduleTypes(model, manifest, from?.canonical))
    add(`${name}.weight`, { ...module, module: name });
  for (const [name, dtype, stored] of carriedOf(manifest, from?.carried, model, file)) {
    const place = storedName(model, name);
    if (!place) continue;
    const shape = fileShape(model, place.tensor, stored ?? needed.get(name), stored !== undefined);
    const plain = dtype === undefined ? PLAIN : plainOf(dtype);
    if (plain !== undefined) add(name, { shape, types: carriedTypes(place.tensor, shape, plain, manifest.target) });
  }
  for (const { name, type, shape } of model.unread) if (!weights.has(name)) add(name, { shape, types: [type] });
  const problems: string[] = [];
  const scalars = scalarNames(model.names, model.plan.blocks.length);
  for (const [name, shape] of needed) {
    if (scalars.has(name)) continue;
    const found = weights.get(name);
    const place = storedName(model, name);
    const want = place && fileShape(model, place.tensor, shape, false);
    if (!found) problems.push(`the file lacks '${name}', which the model of config.json needs`);
    else if (found.shape && `${found.shape}` !== `${want}`)
      problems.push(`'${name}' is [${found.shape}], but the model of config.json needs [${want}]`);
  }
  return { weights, problems };
}

/** The tensors of the header, in order, experts stacked. What nothing says (ExpectedWeight) is as `file` has it. */
export function headerTensors(model: GgufModel, { weights }: ExpectedTensors, file: GgufFile): HeaderTensor[] {
  const stacks = new Map<string, { type: string; dims: readonly number[]; slices: number }>();
  for (const { stored, shape, types, row } of weights.values()) {
    const [, stack] = /^(.*)\[\d+\]$/.exec(stored) ?? (row ? [stored, stored] : []);
    const there = file.has(stored) ? file.matrix(stored) : undefined;
    const type = there && types.includes(there.type.name) ? there.type.name : (types[0] as string);
    const slices = stack === undefined ? 0 : (stacks.get(stack)?.slices ?? 0) + 1;
    const dims = shape?.toReversed() ?? (there ? [there.columns, there.rows].slice(0, row ? 1 : there.rank) : []);
    const halves = stored.split('+');
    const own = halves.length > 1 ? dims.map((size, axis) => (axis === 1 ? size / 2 : size)) : dims;
    for (const half of halves) stacks.set(stack ?? half, { type, dims: own, slices });
  }
  for (const [name, factors] of expectedRope(model))
    stacks.set(name, { type: 'f32', dims: [factors.length], slices: 0 });
  return [...stacks]
    .sort(([a], [b]) => ggufOrder(model.names, a) - ggufOrder(model.names, b) || compareNatural(a, b))
    .map(([name, { type, dims, slices }]) => ({ name, type, dims: slices > 0 ? [...dims, slices] : dims }));
}

function sliceName({ tensor, slice }: { readonly tensor: string; readonly slice?: number }): string {
  return slice === undefined ? tensor : `${tensor}[${slice}]`;
}

/** How the file has the shape of a tensor; `stored`: it is the checkpoint's, which has Conv1D as [K, N]. */
function fileShape(
  model: GgufModel,
  tensor: string,
  shape: readonly number[] | undefined,
  stored: boolean,
): readonly number[] | undefined {
  const fix = fixOf(model, tensor);
  if (shape === undefined) return undefined;
  const [first = 1, ...rest] = shape;
  if (isPadded(model, tensor)) return [model.plan.vocab, ...rest];
  if (fix === 'squeezed' && shape.length === 3) return [first, shape[2] as number];
  if (fix === 'column') return [first, 1];
  const groups = stateGroups(model.plan);
  if (fix === 'groups') return [groups, first / groups];
  return fix === 'turned' && shape.length === 2 && stored ? shape.toReversed() : asVector(shape);
}

/** A gate with one output is a vector to llama.cpp. */
function asVector(shape: readonly number[] | undefined): readonly number[] | undefined {
  return shape?.length === 2 && shape[0] === 1 ? shape.slice(1) : shape;
}

/** Vectors, norms, routers and positions are f32, embeddings and output blocks where rows allow it, everything else stays as it is. */
function carriedTypes(
  tensor: string,
  shape: readonly number[] | undefined,
  plain: string | readonly string[],
  target: string,
): readonly string[] {
  const same = typeof plain === 'string' ? [plain] : plain;
  const outer = tensor === 'token_embd.weight' || tensor === 'output.weight';
  if (
    /^position_embd|\.altup_(correct|predict)_coef|\.indexer\.|\.ffn_gate_inp|_norm\.|\.ssm_(conv1d|a|d|norm)\b|shortconv\.conv/.test(
      tensor,
    )
  )
    return ['f32'];
  if (shape === undefined) return outer ? ['q6_k', 'q8_0', ...same] : ['f32', ...same];
  if (shape.length === 1) return ['f32'];
  const columns = shape[1] as number;
  if (!outer || columns % 32 !== 0) return same;
  return [columns % 256 === 0 && target !== 'gguf-q8_0' ? 'q6_k' : 'q8_0'];
}

/** Carried tensors: their names in the checkpoint and, with one, dtype and shape. */
function carriedOf(
  manifest: ArtifactManifest,
  carried: Carried | undefined,
  model: GgufModel,
  file: GgufFile,
): (readonly [name: string, dtype: string | undefined, shape: readonly number[] | undefined])[] {
  if (!carried)
    return Object.keys(manifest.carried).flatMap((tensor) =>
      checkpointNames(model, tensor, file.has(tensor) ? file.matrix(tensor).rows : 1).map(
        (name) => [name, undefined, undefined] as const,
      ),
    );
  return carried.specs.map(({ name, dtype, shape }) => [name, dtype, shape] as const);
}

/** Modules with their types. Experts of a block are one tensor: where not all are blocks of one type, none is. */
function moduleTypes({ experts }: GgufModel, manifest: ArtifactManifest, canonical: CanonicalCheckpoint | undefined) {
  const modules = new Map<string, { shape: readonly number[]; types: readonly string[] }>();
  const stacks = new Map<string, { names: string[]; forms: Set<string | undefined> }>();
  const plain = (name: string): readonly string[] =>
    canonical ? [plainOf(canonical.module(name).sourceDtype.toUpperCase()) ?? 'bf16'] : PLAIN;
  for (const name of canonical ? canonical.moduleNames() : Object.keys(manifest.modules)) {
    const packed = Object.hasOwn(manifest.modules, name) ? (manifest.modules[name] as PackedModule) : undefined;
    const facts = canonical ? factsOfCanonical(canonical, name) : factsOfPacked(packed as PackedModule);
    // Zero points out of range make a module plain; without a quantized checkpoint nobody knows them.
    const unknown = !canonical && facts.zeros.kind === 'int' && packed?.layout === 'dense';
    const type = unknown ? undefined : blockTypeOf(manifest.target, facts);
    modules.set(name, { shape: facts.shape, types: type === undefined ? plain(name) : [type] });
    const stack = name.replace(/\.experts\.\d+\./, '.experts.*.');
    if (stack === name) continue;
    const { names, forms } = stacks.get(stack) ?? { names: [], forms: new Set() };
    stacks.set(stack, { names: [...names, name], forms: forms.add(type) });
  }
  for (const { names, forms } of stacks.values())
    if (forms.size > 1 || names.length !== experts)
      for (const name of names) modules.set(name, { ...modules.get(name)!, types: plain(name) });
  return modules;
}
