import type { ArtifactManifest } from '../../formats/artifact/schema.js';
import type { GgufValue } from '../../formats/gguf/metadata.js';
import { textOf } from '../core/text-of.js';
import { architectureOf } from '../model/architectures/index.js';
import { type ModelPlan, planModel } from '../model/plan.js';
import { type Entry, fileTypeOf, type HeaderTensor } from './gguf-header.js';
import { expectedTokenizer } from './gguf-tokenizer.js';

type Json = Readonly<Record<string, unknown>>;

/** Names of architectures in llama.cpp, where they are not those of config.json. */
const NAMES: Readonly<Record<string, string>> = {
  mistral: 'llama',
  mixtral: 'llama',
  qwen2_moe: 'qwen2moe',
  qwen3_moe: 'qwen3moe',
};

const u32 = (value: number): GgufValue => ({ type: 'u32', value });
const f32 = (value: number): GgufValue => ({ type: 'f32', value });
const string = (value: string): GgufValue => ({ type: 'string', value });

/** What blocks were made from, as the file says: the codes, the quantized weights, or those of the source. */
export type BlocksFrom = 'codes' | 'quantized' | 'source';

/** The model of config.json, with the defaults of its class. Throws LPQ_CONFIG, LPQ_ARCH_UNKNOWN. */
export function modelPlan(dir: string, config: Json): ModelPlan {
  return planModel(architectureOf(config, dir), config, dir);
}

/** Every key that the file must have, in its order, for these tensors. Throws as modelPlan and expectedTokenizer. */
export function expectedEntries(
  dir: string,
  config: Json,
  plan: ModelPlan,
  { provenance }: ArtifactManifest,
  tensors: readonly HeaderTensor[],
  from: BlocksFrom,
  importance: readonly Entry[],
): Entry[] {
  const type = textOf(config.model_type);
  return [
    ['general.architecture', string(NAMES[type] ?? type)],
    ['general.type', string('model')],
    ['general.name', string(provenance.source.name)],
    ['general.quantized_by', string(`lpq ${provenance.lpq}`)],
    ['general.file_type', u32(fileTypeOf(mostUsed(tensors)))],
    ['general.quantization_version', u32(2)],
    ['lpq.blocks_from', string(from)],
    ...importance,
    ...modelEntries(config, plan).map(([key, value]): Entry => [`${NAMES[type] ?? type}.${key}`, value]),
    ...expectedTokenizer(dir, config, plan.vocab),
  ];
}

function modelEntries(config: Json, plan: ModelPlan): Entry[] {
  const [block] = plan.blocks;
  const { attention, mlp } = block as (typeof plan.blocks)[number];
  if (attention.kind !== 'attention' || !attention.rope || !plan.finalNorm)
    throw new TypeError('a model that GGUF has no table for');
  const { rope, heads, kvHeads, headDim } = attention;
  const entries: Entry[] = [
    ['vocab_size', u32(plan.vocab)],
    ['context_length', u32(Number(config.max_position_embeddings))],
    ['embedding_length', u32(plan.hidden)],
    ['block_count', u32(plan.blocks.length)],
    ['feed_forward_length', u32(mlp.kind === 'gated' ? mlp.down.k : Number(config.intermediate_size))],
    ['attention.head_count', u32(heads)],
    ['attention.head_count_kv', u32(kvHeads)],
    ['attention.key_length', u32(headDim)],
    ['attention.value_length', u32(headDim)],
    ['attention.layer_norm_rms_epsilon', f32(plan.finalNorm.epsilon)],
    ['rope.dimension_count', u32(rope.rotary)],
    ['rope.freq_base', f32(rope.theta)],
  ];
  const { scaling } = rope;
  if (scaling.kind === 'linear' || scaling.kind === 'yarn')
    entries.push(['rope.scaling.type', string(scaling.kind)], ['rope.scaling.factor', f32(scaling.factor)]);
  if (scaling.kind === 'yarn') entries.push(['rope.scaling.original_context_length', u32(scaling.original)]);
  if (mlp.kind !== 'experts') return entries;
  entries.push(
    ['expert_count', u32(mlp.experts.length)],
    ['expert_used_count', u32(mlp.routing.perToken)],
    ['expert_feed_forward_length', u32(mlp.intermediate)],
  );
  if (mlp.shared) entries.push(['expert_shared_feed_forward_length', u32(mlp.shared.intermediate)]);
  return entries;
}

/** The type of most weights in the matrices of the blocks; among equals the first in the file. */
function mostUsed(tensors: readonly HeaderTensor[]): string {
  const weights = new Map<string, number>();
  for (const { name, type, dims } of tensors)
    if (/^blk\./.test(name) && dims.length >= 2)
      weights.set(type, (weights.get(type) ?? 0) + dims.reduce((product, size) => product * size, 1));
  const most = Math.max(0, ...weights.values());
  return [...weights].find(([, count]) => count === most)?.[0] ?? 'f32';
}
