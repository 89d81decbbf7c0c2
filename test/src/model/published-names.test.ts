import assert from 'node:assert/strict';
import { mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { Checkpoint } from '../../../formats/safetensors/checkpoint.js';
import { writeSafetensors } from '../../../formats/safetensors/write.js';
import { createRuntime, type DType, fromTyped, type Tensor, typed } from '../../../native/binding.js';
import { openWeights } from '../../../src/artifact/open.js';
import { makeBatch } from '../../../src/model/batch.js';
import { loadOuter, runForward } from '../../../src/model/forward.js';
import { openModel, planSource } from '../../../src/model/graph.js';
import type { WeightSource } from '../../../src/model/source.js';
import { scratch } from '../../formats/scratch.js';
import { lpq } from '../cli/lpq.js';
import { ARCHITECTURES, PlainFile, plainSource } from './fixtures.js';

/** Fixtures under the names and keys of published checkpoints, which transformers renames when it loads them. */

const rt = createRuntime(2);

type Json = Record<string, unknown>;
type Renaming = readonly (readonly [RegExp, string])[];

/** Tensors under new names; `cut`: those that become several of equal rows, by the part of their names that is replaced. */
function published(
  name: string,
  config: (own: Json) => Json,
  renaming: Renaming,
  cut: (name: string) => Cut[] | undefined,
) {
  const source = plainSource(path.join(ARCHITECTURES, name));
  const renamed = (each: string) => renaming.reduce((text, [from, to]) => text.replace(from, to), each);
  const tensors = new Map<string, { shape: readonly number[]; tensor: () => Promise<Tensor> }>();
  for (const each of source.names()) {
    const cuts = cut(each);
    if (!cuts) {
      tensors.set(renamed(each), { shape: source.shape(each), tensor: () => source.tensor(each) });
      continue;
    }
    const shape = source.shape(each).slice(-2);
    const rows = (source.shape(each).length === 3 ? source.shape(each)[0]! : 1) * shape[0]!;
    const count = rows / cuts.length;
    for (const [i, { as }] of cuts.entries())
      tensors.set(renamed(as), {
        shape: [count, shape[1]!],
        tensor: async () => {
          const whole = await source.tensor(each);
          const data = typed<Uint16Array>(whole).slice(i * count * shape[1]!, (i + 1) * count * shape[1]!);
          return fromTyped(whole.dtype as DType, [count, shape[1]!], data);
        },
      });
  }
  const made: WeightSource = {
    dir: `published ${name}`,
    config: config(source.config as Json),
    names: () => tensors.keys(),
    has: (each) => tensors.has(each),
    shape: (each) => tensors.get(each)!.shape,
    tensor: (each) => tensors.get(each)!.tensor(),
  };
  return made;
}

interface Cut {
  readonly as: string;
}

const DEEPSEEK_V4 = published(
  'deepseek_v4',
  ({ layer_types: _, mlp_layer_types: __, rope_parameters: ___, ...rest }) => ({
    ...rest,
    // One more for the layer of multi-token prediction.
    ...{ compress_ratios: [128, 4, 0], num_hash_layers: 1, rope_theta: 10_000, compress_rope_theta: 160_000 },
  }),
  [
    [/^model\.embed_tokens\./, 'embed.'],
    [/^model\.hc_head\.hc_/, 'hc_head_'],
    [/^model\./, ''],
    [/\.attn\.norm\./, '.attn.kv_norm.'],
  ],
  () => undefined,
);

const sides = (at: string): Cut[] => ['gate', 'up'].map((side) => ({ as: at.replace('gate_up_proj', `${side}_proj`) }));

const MINIMAX_M3 = published(
  'minimax_m3_vl_text',
  ({ model_type: _, architectures: __, mlp_layer_types: ___, layer_types: ____, ...own }) => ({
    model_type: 'minimax_m3_vl',
    architectures: ['MiniMaxM3SparseForConditionalGeneration'],
    text_config: {
      ...own,
      model_type: 'minimax_m3_text',
      hidden_act: 'swigluoai',
      moe_layer_freq: [0, 1],
      ...{ index_n_heads: null, index_head_dim: null, index_block_size: null, index_topk_blocks: null },
      sparse_attention_config: {
        ...{ sparse_num_index_heads: 2, sparse_index_dim: 8, sparse_block_size: 3, sparse_topk_blocks: 2 },
        ...{ sparse_local_block: 1, sparse_attention_freq: [0, 1] },
      },
    },
  }),
  [
    [/^lm_head/, 'language_model.lm_head'],
    [/^model\./, 'language_model.model.'],
    [/\.mlp\.(gate|experts|shared_experts)\./, '.block_sparse_moe.$1.'],
    [/\.gate\.e_score/, '.e_score'],
    [/\.self_attn\.indexer\./, '.self_attn.index_'],
  ],
  (name) => {
    const experts = [0, 1, 2, 3];
    if (name.endsWith('.experts.gate_up_proj'))
      return experts.flatMap((e) =>
        ['w1', 'w3'].map((w) => ({ as: name.replace('gate_up_proj', `${e}.${w}.weight`) })),
      );
    if (name.endsWith('.experts.down_proj'))
      return experts.map((e) => ({ as: name.replace('down_proj', `${e}.w2.weight`) }));
    return name.includes('gate_up_proj') ? sides(name) : undefined;
  },
);

/** What quantized linears and what is carried are called. */
const CASES = [
  {
    fixture: 'deepseek_v4',
    source: DEEPSEEK_V4,
    linears: ['layers.1.attn.wq_a', 'layers.0.ffn.experts.2.w1', 'layers.1.ffn.shared_experts.w2'],
    carried: ['embed.weight', 'head.weight', 'hc_head_fn', 'layers.0.attn.kv_norm.weight', 'layers.0.ffn.gate.tid2eid'],
  },
  {
    fixture: 'minimax_m3_vl_text',
    source: MINIMAX_M3,
    linears: [
      'language_model.model.layers.0.mlp.up_proj',
      'language_model.model.layers.1.block_sparse_moe.experts.3.w2',
      'language_model.model.layers.1.block_sparse_moe.shared_experts.gate_proj',
    ],
    carried: [
      'language_model.lm_head.weight',
      'language_model.model.layers.1.block_sparse_moe.e_score_correction_bias',
      'language_model.model.layers.1.self_attn.index_k_proj.weight',
    ],
  },
] as const;

for (const { fixture, source, linears, carried } of CASES) {
  const golden = new PlainFile(path.join(ARCHITECTURES, fixture, 'golden.safetensors'));
  const logitsOf = async (of: WeightSource): Promise<Float32Array> => {
    const ids = typed<Int32Array>(golden.tensor('input_ids'));
    const batch = makeBatch(rt, [ids.slice(0, ids.length / 2), ids.slice(ids.length / 2)]);
    const graph = openModel(of);
    const outer = await loadOuter(rt, of, graph);
    const [state] = await runForward(rt, of, graph, outer, [batch]);
    const logits = graph.logits(rt, outer, state!.h);
    await rt.sync();
    return typed<Float32Array>(logits).slice();
  };
  const expectEqual = (got: Float32Array, want: Float32Array): void => {
    assert.equal(got.length, want.length);
    got.forEach((value, i) => {
      assert.ok(Math.abs(value - want[i]!) <= 1e-4, `logit ${i}`);
    });
  };

  test(`${fixture} under its published names and keys: the golden's logits`, async () => {
    expectEqual(await logitsOf(source), typed<Float32Array>(golden.tensor('logits')));
  });

  test(`${fixture}: quantized, packed and verified under those names`, async () => {
    const [model, out, packed] = ['model', 'out', 'packed'].map((part) => path.join(scratch(), part)) as [
      string,
      string,
      string,
    ];
    mkdirSync(model, { recursive: true });
    writeFileSync(path.join(model, 'config.json'), JSON.stringify(source.config));
    const dtypes: Partial<Record<DType, 'BF16' | 'F32' | 'I64'>> = { bf16: 'BF16', f32: 'F32', i64: 'I64' };
    const tensors = [...source.names()].map(async (name) => {
      const data = await source.tensor(name);
      return { name, dtype: dtypes[data.dtype]!, shape: source.shape(name), data };
    });
    await writeSafetensors(path.join(model, 'model.safetensors'), await Promise.all(tensors));
    const run = async (...args: string[]): Promise<void> => {
      const made = await lpq(args);
      assert.equal(made.code, 0, made.stderr);
    };
    await run('quantize', model, '-o', out, '--method', 'rtn', '--bits', '4', '--group-size', '32');
    await run('pack', out, '--target', 'compressed-tensors', '-o', packed);
    await run('verify', packed, '--against', out);
    for (const [dir, end] of [
      [out, 'codes'],
      [packed, 'weight_packed'],
    ] as const) {
      const names = new Set(Checkpoint.open(dir).names());
      for (const name of [...linears.map((linear) => `${linear}.${end}`), ...carried]) assert.ok(names.has(name), name);
    }
    const opened = await Promise.all([out, packed].map((dir) => openWeights(dir, rt)));
    const [own, other] = [await logitsOf(opened[0]!), await logitsOf(opened[1]!)];
    expectEqual(other, own);
    for (const weights of opened) weights.close();
  });
}

test('deepseek_v4: one object of YaRN is that of blocks with entries; others turn by the plain angles', () => {
  const { rope_parameters: _, rope_scaling: __, ...rest } = DEEPSEEK_V4.config;
  const yarn = { factor: 16, original_max_position_embeddings: 64, beta_fast: 32, beta_slow: 1 };
  const own = { partial_rotary_factor: 0.5 };
  const nested = {
    main: { ...own, rope_type: 'default', rope_theta: 10_000 },
    compress: { ...own, ...yarn, rope_type: 'yarn', rope_theta: 160_000, attention_factor: 1 },
  };
  const planned = (more: Json) => planSource({ ...DEEPSEEK_V4, config: { ...rest, ...more } });
  assert.deepEqual(planned({ rope_scaling: { ...yarn, type: 'yarn' } }), planned({ rope_parameters: nested }));
  const sliding = { layer_types: ['sliding_attention', 'heavily_compressed_attention'] };
  assert.deepEqual(
    planned({ ...sliding, rope_scaling: { ...yarn, type: 'yarn' } }),
    planned({ ...sliding, rope_parameters: nested }),
  );
});
