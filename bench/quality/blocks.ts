/**
 * How fast blocks are calibrated beside one of plain attention with the same hidden size and the same MLP or experts: all stages of one
 * block, with the second moments of what its linears read, by the sweeps of `lpq quantize`. One thread, seconds of processor time, the
 * least of several runs, which kinds take in turns. Prints a line a kind; --json writes a file.
 *
 *   node dist/bench/quality/blocks.js [--runs 3] [--kinds 'gated delta rule;Mamba'] [--json FILE]
 */
import { writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { createRuntime, type Tensor, uploadTyped } from '../../native/binding.js';
import { architectureOf } from '../../src/model/architectures/index.js';
import { buildGraph } from '../../src/model/graph.js';
import { planModel } from '../../src/model/plan.js';
import type { WeightSource } from '../../src/model/source.js';
import { sweepModel } from '../../src/quantize/collect.js';

type Config = Record<string, unknown>;

const [HIDDEN, INNER, EXPERT, TOKENS, SEQUENCES] = [768, 2048, 1024, 1024, 4];
const base: Config = {
  ...{ hidden_size: HIDDEN, intermediate_size: INNER, num_attention_heads: 12, num_key_value_heads: 4, head_dim: 64 },
  ...{ vocab_size: 512, max_position_embeddings: 4096, rms_norm_eps: 1e-6, hidden_act: 'silu', num_hidden_layers: 1 },
  ...{ tie_word_embeddings: false, rope_theta: 10_000 },
};
const latent = { q_lora_rank: 384, kv_lora_rank: 192, qk_nope_head_dim: 64, qk_rope_head_dim: 32, v_head_dim: 64 };
const turned = (rope_theta: number) => ({ rope_theta, rope_type: 'default', partial_rotary_factor: 0.5 });

/** What a kind is compared with, and its config. */
const KINDS: Readonly<Record<string, { readonly beside?: string; readonly config: Config }>> = {
  attention: { config: { ...base, model_type: 'llama' } },
  'attention, experts': {
    config: {
      ...{ ...base, model_type: 'qwen2_moe', num_experts: 4, num_experts_per_tok: 2, norm_topk_prob: true },
      ...{ moe_intermediate_size: EXPERT, shared_expert_intermediate_size: EXPERT, decoder_sparse_step: 1 },
    },
  },
  'gated delta rule': {
    beside: 'attention',
    config: {
      ...{ ...base, model_type: 'qwen3_5_text', layer_types: ['linear_attention'], linear_conv_kernel_dim: 4 },
      ...{ linear_num_key_heads: 6, linear_key_head_dim: 128, linear_num_value_heads: 12, linear_value_head_dim: 128 },
    },
  },
  'delta rule with a decay a channel': {
    beside: 'attention',
    config: {
      ...{
        ...base,
        ...latent,
        model_type: 'kimi_linear',
        q_lora_rank: null,
        first_k_dense_replace: 1,
        mla_use_nope: true,
      },
      linear_attn_config: {
        ...{ full_attn_layers: [], kda_layers: [1], num_heads: 6, head_dim: 128, short_conv_kernel_size: 4 },
      },
      ...{ num_experts: 4, num_experts_per_token: 2, moe_intermediate_size: EXPERT, num_shared_experts: 1 },
    },
  },
  'Mamba-2': {
    beside: 'attention',
    config: {
      ...{ ...base, model_type: 'granitemoehybrid', layer_types: ['mamba'], shared_intermediate_size: INNER },
      ...{
        mamba_n_heads: 24,
        mamba_d_head: 64,
        mamba_d_state: 128,
        mamba_n_groups: 1,
        mamba_expand: 2,
        mamba_d_conv: 4,
      },
      ...{ num_local_experts: 0, num_experts_per_tok: 0, position_embedding_type: 'rope', attention_multiplier: 0.125 },
      ...{ embedding_multiplier: 1, logits_scaling: 1, residual_multiplier: 1, mamba_chunk_size: 256 },
    },
  },
  Mamba: {
    beside: 'attention',
    config: {
      ...{ ...base, model_type: 'jamba', attn_layer_offset: 1, attn_layer_period: 2, expert_layer_offset: 1 },
      ...{ expert_layer_period: 2, mamba_d_state: 16, mamba_dt_rank: 48, mamba_expand: 2, mamba_d_conv: 4 },
      ...{ num_experts: 4, num_experts_per_tok: 2 },
    },
  },
  'gated convolution': {
    beside: 'attention',
    config: {
      ...{ ...base, model_type: 'lfm2', layer_types: ['conv'], conv_L_cache: 3, norm_eps: 1e-5 },
      ...{ block_auto_adjust_ff_dim: false, conv_bias: false },
    },
  },
  'latent attention with an indexer': {
    beside: 'attention',
    config: {
      ...{
        ...base,
        ...latent,
        model_type: 'deepseek_v32',
        mlp_layer_types: ['dense'],
        n_routed_experts: 4,
        n_group: 1,
      },
      ...{ moe_intermediate_size: EXPERT, n_shared_experts: 1, num_experts_per_tok: 2, topk_group: 1 },
      ...{ index_topk: 256, index_n_heads: 8, index_head_dim: 64, rope_parameters: turned(10_000) },
    },
  },
  'compressed attention, experts': {
    beside: 'attention, experts',
    config: {
      ...{ ...base, model_type: 'deepseek_v4', num_key_value_heads: 1, qk_rope_head_dim: 32, q_lora_rank: 384 },
      ...{ layer_types: ['compressed_sparse_attention'], mlp_layer_types: ['moe'], sliding_window: 128 },
      ...{ compress_rates: { compressed_sparse_attention: 4, heavily_compressed_attention: 128 } },
      ...{ hc_mult: 4, hc_sinkhorn_iters: 20, hc_eps: 1e-6, index_topk: 128, index_n_heads: 8, index_head_dim: 64 },
      ...{ o_groups: 4, o_lora_rank: 192, n_routed_experts: 4, num_experts_per_tok: 2, n_shared_experts: 1 },
      ...{ moe_intermediate_size: EXPERT, scoring_func: 'sqrtsoftplus', norm_topk_prob: true, swiglu_limit: 10 },
      ...{ routed_scaling_factor: 1.5, compress_rope_theta: 160_000, partial_rotary_factor: 0.5, mlp_bias: false },
      ...{ attention_bias: false, rope_parameters: { main: turned(10_000), compress: turned(160_000) } },
    },
  },
};

const rt = createRuntime(1);
let state = 1;
const random = (): number => {
  state = (state * 16_807) % 2_147_483_647;
  return state / 2_147_483_647 - 0.5;
};

/** Weights of fan-in scale, made as they are asked for. */
function sourceOf(config: Config, tensors: ReadonlyMap<string, readonly number[]>): WeightSource {
  const made = new Map<string, Tensor>();
  return {
    dir: 'bench',
    config,
    names: () => tensors.keys(),
    has: (name) => tensors.has(name),
    shape: (name) => tensors.get(name) as readonly number[],
    tensor: async (name) => {
      const shape = tensors.get(name) as readonly number[];
      const count = shape.reduce((a, b) => a * b, 1);
      const [mean, size] = shape.length === 1 ? [0.5, 0.2] : [0, 3 / Math.sqrt(shape.at(-1) as number)];
      const found =
        made.get(name) ??
        uploadTyped(
          rt,
          'f32',
          shape,
          Float32Array.from({ length: count }, () => mean + size * random()),
        );
      made.set(name, found);
      return found.view(found.shape);
    },
  };
}

/** Calibrates a block of a config on all sequences, and says how many processor seconds that took. */
function calibration(config: Config): () => Promise<number> {
  const graph = buildGraph(planModel(architectureOf(config, 'bench'), config, 'bench'));
  const tensors = new Map([graph.outer, ...graph.blocks.map((block) => block.tensors)].flatMap((map) => [...map]));
  const source = sourceOf(config, tensors);
  const sequences = Array.from({ length: SEQUENCES }, () =>
    Int32Array.from({ length: TOKENS }, () => Math.floor((random() + 0.5) * 512)),
  );
  return async () => {
    const before = process.cpuUsage();
    await sweepModel([rt], { sequences }, source, graph, graph.blocks, {}, async () => {});
    await rt.sync();
    const { user, system } = process.cpuUsage(before);
    return (user + system) / 1e6;
  };
}

const { values } = parseArgs({
  options: { runs: { type: 'string', default: '3' }, kinds: { type: 'string' }, json: { type: 'string' } },
});
const asked = values.kinds?.split(';') ?? Object.keys(KINDS);
const kinds = Object.entries(KINDS).filter(([kind]) =>
  asked.some((name) => name === kind || KINDS[name]?.beside === kind),
);
const blocks = kinds.map(([kind, { config }]) => ({ kind, run: calibration(config) }));
const seconds = new Map<string, number>();
for (let run = 0; run <= Number(values.runs); run++)
  for (const block of blocks) {
    const took = await block.run();
    // The first makes the weights.
    if (run > 0) seconds.set(block.kind, Math.min(took, seconds.get(block.kind) ?? Number.POSITIVE_INFINITY));
  }
const rows = kinds.map(([kind, { beside = kind, config }]) => {
  const [own, plain] = [kind, beside].map((name) => seconds.get(name) as number) as [number, number];
  const rate = (TOKENS * SEQUENCES) / own;
  process.stdout.write(`${kind}: ${rate.toFixed(0)} tokens/s, ${(plain / own).toFixed(2)} of ${beside}\n`);
  return { kind, beside, model_type: config.model_type, seconds: own, rate, ratio: plain / own };
});
const result = { hidden: HIDDEN, intermediate: INNER, expert: EXPERT, tokens: TOKENS, sequences: SEQUENCES, rows };
if (values.json) writeFileSync(values.json, `${JSON.stringify(result, null, 2)}\n`);
