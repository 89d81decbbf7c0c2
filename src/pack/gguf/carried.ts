import { ggufName, ggufOrder } from '../../../formats/gguf/names.js';
import type { GgufTypeName } from '../../../formats/gguf/types.js';
import type { TensorSpec } from '../../../formats/safetensors/header.js';
import type { TensorReader } from '../../../formats/safetensors/read.js';
import { allocate, fromTyped, type NativeRuntime, type Tensor, typed } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { type GgufContext, orderOf, tensorName } from './context.js';
import { searchRows, takeRows } from './encode.js';

/** A tensor that was not quantized, on its way into the file. */
export interface CarriedPlan {
  readonly source: TensorSpec;
  /** In the file, the slice of experts included. */
  readonly name: string;
  readonly type: GgufTypeName;
  readonly shape: readonly number[];
}

/** Types of embeddings and output, and of everything else, as llama.cpp's own converter chooses them. */
export function planCarried(carried: readonly TensorSpec[], context: GgufContext) {
  const plans: CarriedPlan[] = [];
  const left: string[] = [];
  for (const source of carried) {
    const place = ggufName(source.name);
    const plain = plainType(source.dtype);
    if (!place || !plain) {
      left.push(source.name);
      continue;
    }
    // A gate with one output is a vector to llama.cpp.
    const shape = source.shape.length === 2 && source.shape[0] === 1 ? source.shape.slice(1) : source.shape;
    plans.push({ source, name: tensorName(place), type: typeOf(place.name, shape, plain, context), shape });
  }
  plans.sort((a, b) => ggufOrder(a.name) - ggufOrder(b.name));
  return { plans, left };
}

function typeOf(name: string, shape: readonly number[], plain: GgufTypeName, context: GgufContext): GgufTypeName {
  if (shape.length === 1 || name.includes('ffn_gate_inp')) return 'f32';
  if (name !== 'token_embd.weight' && name !== 'output.weight') return plain;
  const columns = shape[1] as number;
  if (columns % 256 === 0 && context.search !== 'q8_0') return 'q6_k';
  return columns % 32 === 0 ? 'q8_0' : plain;
}

function plainType(dtype: string): GgufTypeName | undefined {
  return ({ F32: 'f32', F16: 'f16', BF16: 'bf16', F64: 'f32' } as const)[dtype as 'F32'];
}

/** Its bytes. The caller disposes of them. */
export async function carriedBytes(
  rt: NativeRuntime,
  weights: TensorReader,
  plan: CarriedPlan,
  context: GgufContext,
): Promise<Tensor> {
  const { source, type } = plan;
  const stored = weights.tensor(source.name);
  const place = ggufName(source.name);
  let tensor =
    stored.dtype === 'f64'
      ? fromTyped('f32', stored.shape, Float32Array.from(typed<Float64Array>(stored)))
      : stored.view(stored.shape);
  stored.dispose();
  const replace = (next: Tensor): void => {
    tensor.dispose();
    tensor = next;
  };
  if (type === 'q6_k' || type === 'q8_0') {
    replace(await searchRows(rt, source.name, tensor, type));
    return tensor;
  }
  if (tensor.dtype !== type) {
    const cast = allocate(type as 'f32' | 'f16' | 'bf16', tensor.shape);
    ops.cast(rt, tensor, cast);
    await rt.sync();
    replace(cast);
  }
  if (place?.heads && context.model.architecture.interleaved)
    replace(await takeRows(rt, tensor, orderOf(context, place, tensor.shape[0] as number)));
  return tensor;
}
