import { dtypeFacts } from '../../safetensors/dtypes.js';
import { badGguf, type GgufModelFile, type GgufPart, type GgufTensor } from './file.js';
import type { GgufSourceModel } from './model.js';
import type { Place } from './places.js';

type Placed = GgufTensor & { readonly part: GgufPart };

/** The halves of what makes keys and values of a latent vector, as llama.cpp absorbs them into queries and outputs. */
export interface LatentHalves {
  /** [heads, latent, K] of keys, turned over. */
  readonly k: Placed;
  /** [heads, V, latent]. */
  readonly v: Placed;
}

/** Which block and half a tensor is, in a model with latent attention. */
export function latentHalf(name: string, { latent }: GgufSourceModel['architecture']) {
  const found = latent === undefined ? undefined : /^blk\.(\d+)\.attn_([kv])_b\.weight$/.exec(name)?.slice(1);
  return found && { layer: found[0] as string, half: found[1] as 'k' | 'v' };
}

/** The place of kv_b_proj [heads * (K + V), latent] of a block. Throws LPQ_GGUF for a half without the other, or of another size. */
export function latentPlace(
  file: GgufModelFile,
  { architecture, shared, facts }: GgufSourceModel,
  layer: string,
  { k, v }: Partial<LatentHalves>,
): Place {
  if (!k || !v)
    return badGguf(file.path, `'blk.${layer}.attn_k_b.weight' and 'blk.${layer}.attn_v_b.weight' belong together`, {
      got: (k ?? v)?.name,
    });
  const rank = facts.number('attention.kv_lora_rank');
  const keys = facts.number('attention.key_length_mla') - facts.number('rope.dimension_count');
  const values = facts.number('attention.value_length_mla');
  for (const [tensor, expected] of [
    [k, [shared.heads, rank, keys]],
    [v, [shared.heads, values, rank]],
  ] as const)
    if (`${tensor.shape}` !== `${expected}`)
      badGguf(file.path, `tensor '${tensor.name}' does not have the shape that its heads require`, {
        got: `[${tensor.shape}]`,
        expected: `[${expected}]`,
      });
  const same = k.type.holds === v.type.holds && typeof k.type.holds === 'string' ? k.type.holds : undefined;
  const shape = [shared.heads * (keys + values), rank];
  const dtype = same ?? 'F32';
  const bytes = ((shape[0] as number) * rank * dtypeFacts(dtype).bits) / 8;
  return {
    entry: {
      name: `${architecture.blocks}.${layer}.${architecture.latent}.weight`,
      dtype,
      shape,
      begin: 0,
      end: bytes,
    },
    from: k,
    position: k.position,
    bytes: k.bytes,
    fix: undefined,
    minusOne: false,
    halves: { k, v },
  };
}

/**
 * kv_b_proj [heads * (K + V), latent] of its halves, head by head the rows of keys, then those of values: k [heads, latent, K], v [heads,
 * V, latent], elements of one kind.
 */
export function joinLatent<T extends Float32Array | Uint16Array>(
  k: T,
  v: T,
  [heads, rank, keys]: readonly [number, number, number],
  values: number,
  out: T,
): void {
  for (let head = 0; head < heads; head++) {
    const first = head * (keys + values) * rank;
    const own = head * rank * keys;
    for (let row = 0; row < keys; row++)
      for (let i = 0; i < rank; i++) out[first + row * rank + i] = k[own + i * keys + row] as number;
    out.set(v.subarray(head * values * rank, (head + 1) * values * rank), first + keys * rank);
  }
}
