import { textOf } from '../core/text-of.js';
import type { RopeSpec } from '../model/rope.js';

// Names of tensors and orders of rows in GGUF, in tables of the verifier's own.

type Json = Readonly<Record<string, unknown>>;

/** Parts of a block, in the order of the file; stacks of experts follow. */
const PARTS: Readonly<Record<string, string>> = {
  attn_norm: 'input_layernorm',
  attn_q: 'self_attn.q_proj',
  attn_k: 'self_attn.k_proj',
  attn_v: 'self_attn.v_proj',
  attn_output: 'self_attn.o_proj',
  attn_q_norm: 'self_attn.q_norm',
  attn_k_norm: 'self_attn.k_norm',
  ffn_norm: 'post_attention_layernorm',
  ffn_gate: 'mlp.gate_proj',
  ffn_up: 'mlp.up_proj',
  ffn_down: 'mlp.down_proj',
  ffn_gate_inp: 'mlp.gate',
  ffn_gate_shexp: 'mlp.shared_expert.gate_proj',
  ffn_up_shexp: 'mlp.shared_expert.up_proj',
  ffn_down_shexp: 'mlp.shared_expert.down_proj',
  ffn_gate_inp_shexp: 'mlp.shared_expert_gate',
};

/** The checkpoint's name of a tensor of the file; undefined for one that no checkpoint has. */
export function checkpointName(tensor: string, config: Json): string | undefined {
  if (tensor === 'token_embd.weight') return 'model.embed_tokens.weight';
  if (tensor === 'output_norm.weight') return 'model.norm.weight';
  if (tensor === 'output.weight') return 'lm_head.weight';
  const [, layer, part, kind, expert] = /^blk\.(\d+)\.(\w+)\.(weight|bias)(?:\[(\d+)\])?$/.exec(tensor) ?? [];
  if (part === undefined) return undefined;
  const mixtral = config.model_type === 'mixtral';
  const prefix = `model.layers.${layer}.`;
  if (expert !== undefined) {
    const gated = /^ffn_(gate|up|down)_exps$/.exec(part)?.[1] as 'gate' | 'up' | 'down' | undefined;
    if (!gated || kind !== 'weight') return undefined;
    return mixtral
      ? `${prefix}block_sparse_moe.experts.${expert}.${{ gate: 'w1', up: 'w3', down: 'w2' }[gated]}.weight`
      : `${prefix}mlp.experts.${expert}.${gated}_proj.weight`;
  }
  if (mixtral && part === 'ffn_gate_inp') return `${prefix}block_sparse_moe.gate.weight`;
  return Object.hasOwn(PARTS, part) ? `${prefix}${PARTS[part]}.${kind}` : undefined;
}

const EXPERTS = ['gate', 'up', 'down'] as const;
const OUTER: Readonly<Record<string, string>> = {
  'model.embed_tokens.weight': 'token_embd.weight',
  'model.norm.weight': 'output_norm.weight',
  'lm_head.weight': 'output.weight',
};

/** The tensor of the file that a checkpoint's is stored as, or is a slice of; undefined for one that GGUF has no place for. */
export function storedName(
  name: string,
  config: Json,
): { readonly tensor: string; readonly slice?: number } | undefined {
  const outer = Object.hasOwn(OUTER, name) ? OUTER[name] : undefined;
  if (outer !== undefined) return { tensor: outer };
  const [, layer, place, kind] = /^model\.layers\.(\d+)\.(.+)\.(weight|bias)$/.exec(name) ?? [];
  const [, slice] = /\.experts\.(\d+)\./.exec(name) ?? [];
  const parts = slice === undefined ? Object.keys(PARTS) : EXPERTS.map((each) => `ffn_${each}_exps`);
  // The other table is asked, so that a name that only looks alike has no place.
  const at = slice === undefined ? '' : `[${slice}]`;
  const part = parts.find((each) => place && checkpointName(`blk.${layer}.${each}.${kind}${at}`, config) === name);
  if (part === undefined) return undefined;
  return { tensor: `blk.${layer}.${part}.${kind}`, ...(slice !== undefined && { slice: Number(slice) }) };
}

/** Compares two tensors of the file by where they stand in it. */
export function inFileOrder(a: string, b: string): number {
  const outer = [...Object.values(OUTER), 'rope_freqs.weight'];
  const parts = [...Object.keys(PARTS), ...EXPERTS.map((each) => `ffn_${each}_exps`)];
  const place = (tensor: string): readonly number[] => {
    const [, layer, part, kind] = /^blk\.(\d+)\.(\w+)\.(weight|bias)$/.exec(tensor) ?? [];
    if (part === undefined) return [-1, outer.indexOf(tensor), 0];
    return [Number(layer), parts.indexOf(part), kind === 'bias' ? 0 : 1];
  };
  const [left, right] = [place(a), place(b)];
  return left.map((value, i) => value - (right[i] as number)).find((difference) => difference !== 0) ?? 0;
}

/** For every row of a tensor of the file, the row of the checkpoint's that it is. */
export function storedOrder(tensor: string, rows: number, config: Json): Int32Array {
  const order = Int32Array.from({ length: rows }, (_, row) => row);
  const llama = ['llama', 'mistral', 'mixtral'].includes(textOf(config.model_type));
  const which = /^blk\.\d+\.attn_([qk])\./.exec(tensor)?.[1];
  if (!llama || which === undefined) return order;
  const all = Number(config.num_attention_heads);
  const heads = which === 'q' ? all : Number(config.num_key_value_heads ?? all);
  const half = rows / heads / 2;
  // llama.cpp turns neighbours (2i, 2i + 1) where the checkpoint turns i and i + half.
  for (let head = 0; head < heads; head++)
    for (let i = 0; i < half; i++)
      for (let side = 0; side < 2; side++) order[head * 2 * half + 2 * i + side] = head * 2 * half + side * half + i;
  return order;
}

/** rope_freqs.weight of Llama 3.1's scaling; undefined for a model without. */
export function expectedRopeFactors({ scaling, theta, rotary }: RopeSpec): Float64Array | undefined {
  if (scaling.kind !== 'llama3') return undefined;
  const { factor, low, high, original } = scaling;
  return Float64Array.from({ length: rotary / 2 }, (_, i) => {
    const turns = original / (2 * Math.PI * theta ** ((2 * i) / rotary));
    if (turns > high) return 1;
    if (turns < low) return factor;
    const smooth = (turns - low) / (high - low);
    return 1 / ((1 - smooth) / factor + smooth);
  });
}
