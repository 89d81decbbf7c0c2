import assert from 'node:assert/strict';
import { copyFileSync, mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { createRuntime } from '../../../../native/binding.js';
import { needsLine } from '../../../../src/cli/options/preflight.js';
import { needsOfRun } from '../../../../src/cli/quantize/needs.js';
import { type QuantizeOptions, quantizeOptions } from '../../../../src/cli/quantize/options.js';
import { events, lpq, model, scratch } from '../lpq.js';

interface Plan {
  readonly weights?: string;
  readonly modules: readonly { name: string; shape: readonly number[]; action: string; type?: string }[];
  readonly carried: readonly string[];
  readonly estimate: { output: number; rss: number; leastSeconds?: number };
}

const planOf = (ran: Awaited<ReturnType<typeof lpq>>): Plan =>
  events(ran).find(({ dryRun }) => dryRun === true) as unknown as Plan;

/** The shape of Kimi K2 (a trillion weights) with fewer blocks, as its authors write it. */
const K2 = {
  architectures: ['DeepseekV3ForCausalLM'],
  model_type: 'kimi_k2',
  ...{ hidden_size: 7168, intermediate_size: 18432, moe_intermediate_size: 2048, vocab_size: 163840 },
  ...{ num_attention_heads: 64, num_key_value_heads: 64, num_hidden_layers: 3, first_k_dense_replace: 1 },
  ...{ q_lora_rank: 1536, kv_lora_rank: 512, qk_nope_head_dim: 128, qk_rope_head_dim: 64, v_head_dim: 128 },
  ...{ n_routed_experts: 384, n_shared_experts: 1, num_experts_per_tok: 8, n_group: 1, topk_group: 1 },
  ...{ max_position_embeddings: 131072, rms_norm_eps: 1e-6, rope_theta: 50000, routed_scaling_factor: 2.827 },
  ...{ scoring_func: 'sigmoid', topk_method: 'noaux_tc', torch_dtype: 'bfloat16', tie_word_embeddings: false },
  quantization_config: { quant_method: 'fp8', fmt: 'e4m3', weight_block_size: [128, 128] },
};

test('a dry run of a config.json alone plans what one of the weights plans', async (t) => {
  const dir = scratch(t);
  const bare = path.join(dir, 'bare');
  mkdirSync(bare);
  copyFileSync(path.join(model, 'config.json'), path.join(bare, 'config.json'));
  const args = [
    '-o',
    path.join(dir, 'out'),
    '--bits',
    '4',
    '--method',
    'rtn',
    '--device',
    'cpu',
    '--json',
    '--dry-run',
  ];
  const [full, planned] = [
    planOf(await lpq(['quantize', model, ...args])),
    planOf(await lpq(['quantize', bare, ...args])),
  ];
  assert.equal(planned.weights, 'none');
  assert.deepEqual(planned.modules, full.modules);
  assert.deepEqual([...planned.carried].sort(), [...full.carried].sort());
  // Less the tokenizer and its like, which are not there.
  assert.ok(planned.estimate.output <= full.estimate.output && planned.estimate.output > 0.7 * full.estimate.output);

  const run = await lpq(['quantize', bare, '-o', path.join(dir, 'out'), '--bits', '4', '--method', 'rtn']);
  assert.equal(run.code, 4);
  assert.match(run.stderr, /LPQ_FILE .*holds no safetensors checkpoint/);
});

test('a mixture of Kimi K2: disk, memory of a block and time, from config.json and an index', async (t) => {
  const place = scratch(t);
  const dir = path.join(place, 'k2');
  mkdirSync(dir);
  writeFileSync(path.join(dir, 'config.json'), JSON.stringify(K2));
  const map = {
    'model.embed_tokens.weight': 'model-1-of-2.safetensors',
    'model.layers.0.input_layernorm.weight': 'model-1-of-2.safetensors',
    'model.layers.61.eh_proj.weight': 'model-2-of-2.safetensors',
  };
  writeFileSync(path.join(dir, 'model.safetensors.index.json'), JSON.stringify({ weight_map: map }));
  const args = [
    'quantize',
    dir,
    '-o',
    path.join(place, 'out'),
    '--bits',
    '4',
    '--dry-run',
    '--device',
    'cpu',
    '--json',
  ];
  const ran = await lpq([...args, '--timed']);
  assert.equal(ran.code, 0, ran.stdout);
  const warning = events(ran).find(({ event }) => event === 'warning') as { message: string; beyond: number };
  assert.match(warning.message, /holds no weights.*1 tensor of its index/);
  assert.equal(warning.beyond, 1);
  const plan = planOf(ran);
  // Latent attention of three blocks, an MLP, experts and a shared one of two.
  assert.equal(plan.modules.length, 3 * 5 + 3 + 2 * 3 * 385);
  const weights = plan.modules.reduce((sum, { shape: [n = 0, k = 0] }) => sum + n * k, 0);
  const carried = 2 * 2 * 163840 * 7168;
  // 4 bits and a scale of 16 a group of 128; routers, norms, header and manifest are within the tolerance.
  const bytes = (weights * (4 + 16 / 128)) / 8 + carried;
  assert.ok(Math.abs(plan.estimate.output / bytes - 1) < 0.02, `${plan.estimate.output}, of weights ${bytes}`);
  // The weights of a block in 16 bits, three times, second moments of its experts, and what no block says: not those of the model.
  const block = 2 * 3 * 385 * 2048 * 7168;
  const moments = 384 * 4 * 7168 ** 2;
  assert.ok(plan.estimate.rss < 3.5 * block + 1.5 * moments + 40e9, `${plan.estimate.rss}`);
  assert.ok((plan.estimate.leastSeconds ?? 0) > 60);
});

test('a long run says before it starts how long it takes, a short one does not', async (t) => {
  const dir = path.join(scratch(t), 'k2');
  mkdirSync(dir);
  writeFileSync(path.join(dir, 'config.json'), JSON.stringify(K2));
  const rt = createRuntime(1);
  const needs = async (source: string, samples: number) =>
    needsOfRun((await quantizeOptions(source, { output: 'OUT', bits: 4, samples } as never)) as QuantizeOptions, [rt]);
  const long = await needs(dir, 128);
  assert.ok((long.leastSeconds ?? 0) > 100);
  assert.match(needsLine(long, undefined), /to write, about .* of memory, about \d+h? \S+ or more$/);
  assert.equal((await needs(model, 16)).leastSeconds, undefined);
});
