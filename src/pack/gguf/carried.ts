import { type GgufName, ggufName, ggufOrder } from '../../../formats/gguf/names.js';
import { scalarNames } from '../../../formats/gguf/scalars.js';
import type { GgufTypeName } from '../../../formats/gguf/types.js';
import type { TensorSpec } from '../../../formats/safetensors/header.js';
import { allocate, fromTyped, type NativeRuntime, type Tensor, typed } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { LpqError } from '../../core/error.js';
import type { Carried } from '../../model/gguf/carried.js';
import { stateGroups } from '../../model/gguf/facts.js';
import { buildGraph } from '../../model/graph.js';
import { columnsOf, type GgufContext, orderOf, tensorName } from './context.js';
import { searchRows, takeColumns, takeRows } from './encode.js';

/** A tensor of the file that was not quantized: one of the checkpoint, vectors of it that the file has as rows, or none of it: zeros. */
export interface CarriedPlan {
  readonly sources: readonly TensorSpec[];
  readonly place: GgufName;
  /** In the file, the slice of experts included. */
  readonly name: string;
  readonly type: GgufTypeName;
  readonly shape: readonly number[];
  /** Of the rows of its source. */
  readonly half?: 0 | 1;
}

/**
 * Types of embeddings and output, and of everything else, as llama.cpp's own converter chooses them. Throws LPQ_TARGET for a tensor
 * that the model needs and llama.cpp has no place for.
 */
export function planCarried(carried: readonly TensorSpec[], context: GgufContext) {
  const { names, plan } = context.model;
  const plans = new Map<string, CarriedPlan>();
  const left: string[] = [];
  const scalars = scalarNames(names, plan.blocks.length);
  for (const source of carried) {
    if (scalars.has(source.name)) continue;
    const place = ggufName(names, source.name);
    const plain = plainType(source.dtype);
    // A tied head is the embedding, whatever lies beside it.
    if (!place || !plain || (plan.tied && place.name === 'output.weight')) {
      left.push(source.name);
      continue;
    }
    const row = place.expert !== undefined && source.shape.length === 1;
    const name = row ? place.name : tensorName(place);
    const sources = [...(plans.get(name)?.sources ?? []), source];
    const shape = row ? [sources.length, ...source.shape] : shapeOf(context, place, source.shape);
    const type = typeOf(place.name, shape, plain, context);
    if (place.second === undefined) plans.set(name, { sources, place, name, type, shape });
    else
      for (const [half, each] of [name, place.second].entries()) {
        const own = shape.map((size, axis) => (axis === 0 ? size / 2 : size));
        plans.set(each, { sources, place, name: each, type, shape: own, half: half as 0 | 1 });
      }
  }
  for (const { name, tensor, type, shape } of context.model.unread) {
    const place = ggufName(names, name);
    if (place) plans.set(tensor, { sources: [], place, name: tensor, type, shape });
  }
  requirePlaces(left, context);
  const sorted = [...plans.values()].sort((a, b) => ggufOrder(names, a.name) - ggufOrder(names, b.name));
  return { plans: sorted, left };
}

function requirePlaces(left: readonly string[], { model }: GgufContext): void {
  const { outer, blocks } = buildGraph(model.plan);
  const needed = left.find((name) => [outer, ...blocks.map(({ tensors }) => tensors)].some((all) => all.has(name)));
  if (needed === undefined || (model.plan.tied && needed.endsWith('lm_head.weight'))) return;
  throw new LpqError(
    'LPQ_TARGET',
    `llama.cpp's ${model.names.name} has no place for tensor '${needed}', which the model needs`,
    {
      hint: 'Pack for compressed-tensors, gptq or awq.',
    },
  );
}

/** A gate with one output is a vector to llama.cpp; Conv1D is turned over; parameters of states have shapes of their own. */
function shapeOf({ model }: GgufContext, { fix, padded }: GgufName, shape: readonly number[]): readonly number[] {
  const [first = 1, ...rest] = shape;
  if (padded) return [model.plan.vocab, ...rest];
  if (fix === 'squeezed') return shape.filter((_, axis) => axis !== 1);
  if (fix === 'column') return [first, 1];
  if (fix === 'groups') return [stateGroups(model.plan), first / stateGroups(model.plan)];
  if (shape.length !== 2) return shape;
  return fix === 'turned' ? shape.toReversed() : first === 1 ? shape.slice(1) : shape;
}

/** Tensors of two dimensions that llama.cpp reads as f32. */
const WIDE =
  /ffn_gate_inp|position_embd|altup_(correct|predict)_coef|indexer\.|_norm\.|_exps\.bias|ssm_(conv1d|a|d|norm)\b|shortconv\.conv/;

function typeOf(name: string, shape: readonly number[], plain: GgufTypeName, context: GgufContext): GgufTypeName {
  if (shape.length === 1 || WIDE.test(name)) return 'f32';
  if (name !== 'token_embd.weight' && name !== 'output.weight') return plain;
  const columns = shape[1] as number;
  if (columns % 256 === 0 && context.search !== 'q8_0') return 'q6_k';
  return columns % 32 === 0 ? 'q8_0' : plain;
}

function plainType(dtype: string): GgufTypeName | undefined {
  return ({ F32: 'f32', F16: 'f16', BF16: 'bf16', F64: 'f32' } as const)[dtype as 'F32'];
}

/** Ways of a tensor into the file that change the order of its rows. */
const REORDERED: ReadonlySet<string> = new Set(['interleaved-q', 'interleaved-k', 'halved-q', 'halved-k', 'heads']);

/** Its bytes. The caller disposes of them. */
export async function carriedBytes(
  rt: NativeRuntime,
  carried: Carried,
  plan: CarriedPlan,
  context: GgufContext,
): Promise<Tensor> {
  const { sources, place, type, shape } = plan;
  const [first] = sources;
  if (first === undefined) return zeros(type, shape);
  if (plan.half !== undefined) {
    const { half, ...rest } = plan;
    const both = await carriedBytes(
      rt,
      carried,
      { ...rest, shape: shape.map((size, i) => (i ? size : 2 * size)) },
      context,
    );
    const part = both.view(shape, half * shape.reduce((a, b) => a * b, 1));
    both.dispose();
    return part;
  }
  if (type === 'q6_k' || type === 'q8_0') {
    const stored = narrowed(await carried.tensor(first.name));
    const blocks = await searchRows(rt, first.name, stored, type);
    stored.dispose();
    return blocks;
  }
  const whole = allocate(type as 'f32' | 'f16' | 'bf16', shape);
  for (const [row, { name }] of sources.entries()) {
    const stored = narrowed(await carried.tensor(name));
    const count = stored.shape.reduce((a, b) => a * b, 1);
    if (place.padded) whole.bytes().fill(0, (count * whole.byteLength) / shape.reduce((a, b) => a * b, 1));
    const part = whole.view([count], row * count);
    const flat = stored.view([count]);
    ops.cast(rt, flat, part);
    await rt.sync();
    for (const tensor of [stored, part, flat]) tensor.dispose();
  }
  if (context.model.names.normsPlusOne && !place.plain && first.name.endsWith('norm.weight'))
    change(whole, (value) => value + 1);
  if (place.minusExp) change(whole, (value) => -Math.exp(value));
  if (place.fix === 'turned' && shape.length === 2) turn(whole);
  if (place.states === 'columns') return takeColumns(whole, columnsOf(context, place));
  if (!place.states && !(place.fix && REORDERED.has(place.fix))) return whole;
  const moved = await takeRows(rt, whole, orderOf(context, place, whole.shape[0] as number));
  whole.dispose();
  return moved;
}

function zeros(type: GgufTypeName, shape: readonly number[]): Tensor {
  const tensor = allocate(type as 'f32' | 'f16' | 'bf16', shape);
  tensor.bytes().fill(0);
  return tensor;
}

/** F64 as f32. */
function narrowed(stored: Tensor): Tensor {
  if (stored.dtype !== 'f64') return stored;
  const narrow = fromTyped('f32', stored.shape, Float32Array.from(typed<Float64Array>(stored)));
  stored.dispose();
  return narrow;
}

function change(tensor: Tensor, to: (value: number) => number): void {
  const values = typed<Float32Array>(tensor);
  for (let i = 0; i < values.length; i++) values[i] = to(values[i] as number);
}

/** Elements of [K, N] become those of [N, K], in place of a tensor that has that shape already. */
function turn(tensor: Tensor): void {
  const [n, k] = tensor.shape as [number, number];
  const values = typed<Float32Array | Uint16Array>(tensor);
  const stored = values.slice();
  for (let row = 0; row < n; row++)
    for (let column = 0; column < k; column++) values[row * k + column] = stored[column * n + row] as number;
}
