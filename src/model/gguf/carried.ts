import type { TensorSpec } from '../../../formats/safetensors/header.js';
import type { TensorReader } from '../../../formats/safetensors/read.js';
import { expertSource, slicesOf } from '../fused-experts.js';
import type { WeightSource } from '../source.js';

/** Tensors that were not quantized, those of all experts of a block one by one. */
export interface Carried {
  readonly specs: readonly TensorSpec[];
  /** What the checkpoint stores a tensor under. */
  stored(name: string): string;
  has(name: string): boolean;
  /** The caller disposes of it. */
  tensor(name: string): Promise<ReturnType<TensorReader['tensor']>>;
}

/** `names`: those of a checkpoint in `weights`. Throws LPQ_TENSOR_SHAPE. */
export function carriedOf(
  { dir, config, weights }: { dir: string; config: Readonly<Record<string, unknown>>; weights: TensorReader },
  names: readonly string[],
): Carried {
  const own = new Set(names);
  const whole: WeightSource = {
    dir,
    config: { ...config },
    names: () => own,
    has: (name) => own.has(name),
    shape: (name) => weights.spec(name).shape,
    tensor: async (name) => weights.tensor(name),
  };
  const source = expertSource(whole);
  const slices = slicesOf(source);
  const stored = (name: string) => slices.get(name)?.tensor ?? name;
  return {
    specs: [...source.names()].map((name) => ({
      name,
      dtype: weights.spec(stored(name)).dtype,
      shape: source.shape(name),
    })),
    stored,
    has: (name) => source.has(name),
    tensor: (name) => source.tensor(name),
  };
}
