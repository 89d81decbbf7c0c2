import { mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { encodeHeader } from '../../formats/safetensors/header.js';
import { architectureOf } from '../../src/model/architectures/index.js';
import { buildGraph } from '../../src/model/graph.js';
import { planModel } from '../../src/model/plan.js';

// Two models of a few hundred kilobytes that have what packers and verifiers must not lose: two blocks, an own head, a RoPE
// scaling, norms, tokenizers of both families, templates, and (the second) experts with a router.

export type Json = Record<string, unknown>;

const HIDDEN = 256;

const COMMON: Json = {
  hidden_size: HIDDEN,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  head_dim: 64,
  max_position_embeddings: 4096,
  rms_norm_eps: 0.00001,
  hidden_act: 'silu',
  attention_bias: false,
  attention_dropout: 0.5,
  initializer_range: 0.02,
  bos_token_id: 1,
  eos_token_id: [2, 3],
  pad_token_id: 0,
  tie_word_embeddings: false,
  use_cache: true,
  dtype: 'bfloat16',
  transformers_version: '5.17.0',
};

const LLAMA: Json = {
  architectures: ['LlamaForCausalLM'],
  model_type: 'llama',
  ...COMMON,
  // No multiple of 256, so that searched blocks of GGUF stand in for others.
  intermediate_size: 384,
  num_hidden_layers: 2,
  mlp_bias: false,
  vocab_size: 96,
  rope_parameters: {
    rope_type: 'llama3',
    rope_theta: 500000,
    factor: 8,
    low_freq_factor: 1,
    high_freq_factor: 4,
    original_max_position_embeddings: 1024,
  },
};

const MIXTURE: Json = {
  architectures: ['Qwen3MoeForCausalLM'],
  model_type: 'qwen3_moe',
  ...COMMON,
  intermediate_size: 256,
  moe_intermediate_size: 256,
  num_experts: 4,
  num_experts_per_tok: 2,
  norm_topk_prob: true,
  decoder_sparse_step: 1,
  mlp_only_layers: [],
  num_hidden_layers: 1,
  vocab_size: 320,
  rope_theta: 10000,
  use_sliding_window: false,
};

const SPECIALS = ['<pad>', '<s>', '</s>', '<|end|>'];

const added = (content: string, id: number, special: boolean) => ({
  ...{ id, content, single_word: false, lstrip: false, rstrip: false, normalized: false },
  special,
});

const TEMPLATE = "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}";

/** Bytes of letters and digits, and some merges: BPE as GPT-2 and Llama 3 have it. */
function byteTokenizer(): Json {
  const letters = [...'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,!?Ġ'];
  const merges = ['t h', 'th e', 'i n', 'a n', 'an d', 'o n', 'Ġ the', 'Ġ and', 'r e', 'e r', 'q u', 'o u'];
  const tokens = [...SPECIALS, ...letters, ...merges.map((merge) => merge.replace(' ', ''))];
  return {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: [...SPECIALS.map((token, id) => added(token, id, id < 3)), added('<|extra|>', 94, false)],
    normalizer: null,
    pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true },
    post_processor: {
      type: 'TemplateProcessing',
      single: [{ SpecialToken: { id: '<s>', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }],
      pair: [{ Sequence: { id: 'A', type_id: 0 } }, { Sequence: { id: 'B', type_id: 1 } }],
      special_tokens: { '<s>': { id: '<s>', ids: [1], tokens: ['<s>'] } },
    },
    decoder: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: {
      ...{ type: 'BPE', dropout: null, unk_token: null, byte_fallback: false, ignore_merges: false },
      vocab: Object.fromEntries(tokens.map((token, id) => [token, id])),
      merges,
    },
  };
}

/** Pieces with byte fallback, as Llama 2 and Mistral have it: GGUF gives such tokens scores. */
function pieceTokenizer(): Json {
  const bytes = Array.from({ length: 256 }, (_, byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`);
  const letters = [...'▁abcdefghijklmnopqrstuvwxyz'];
  const merges = ['▁ t', '▁t h', '▁th e', 'i n', 'a n', '▁ an', 'r e'];
  const tokens = ['<unk>', '<s>', '</s>', '<pad>', ...bytes, ...letters, ...merges.map((m) => m.replace(' ', ''))];
  return {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: ['<unk>', '<s>', '</s>'].map((token, id) => added(token, id, true)),
    normalizer: {
      type: 'Sequence',
      normalizers: [
        { type: 'Prepend', prepend: '▁' },
        { type: 'Replace', pattern: { String: ' ' }, content: '▁' },
      ],
    },
    pre_tokenizer: null,
    post_processor: null,
    decoder: { type: 'ByteFallback' },
    model: {
      ...{ type: 'BPE', dropout: null, unk_token: '<unk>', fuse_unk: true, byte_fallback: true },
      vocab: Object.fromEntries([...new Set(tokens)].map((token, id) => [token, id])),
      merges,
    },
  };
}

/** xorshift32: the same numbers every time. */
export function random(seed: number): () => number {
  let state = seed >>> 0 || 1;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return state >>> 0;
  };
}

/** bf16 numbers of about `size`, none of them 0, no two rows alike. */
function drawn(count: number, next: () => number, size: number, mean: number): Uint8Array {
  const values = Float32Array.from({ length: count }, () => mean + size * (next() / 2 ** 31 - 1));
  const words = new Uint32Array(values.buffer);
  return new Uint8Array(Uint16Array.from(words, (bits) => bits >>> 16).buffer);
}

/** mixture has experts; the MLP of odd is no multiple of 128, so that layouts pad input features. */
export type ModelKind = 'dense' | 'odd' | 'mixture';

const CONFIGS: Readonly<Record<ModelKind, Json>> = {
  dense: LLAMA,
  odd: { ...LLAMA, intermediate_size: 320 },
  mixture: MIXTURE,
};

/** Writes a model's directory. */
export function writeModel(dir: string, kind: ModelKind): void {
  const config = CONFIGS[kind];
  mkdirSync(dir, { recursive: true });
  const graph = buildGraph(planModel(architectureOf(config, dir), config, dir));
  const shapes = [graph.outer, ...graph.blocks.map(({ tensors }) => tensors)].flatMap((map) => [...map]);
  const next = random(97);
  let end = 0;
  const data: Uint8Array[] = [];
  const entries = shapes.map(([name, shape]) => {
    const count = shape.reduce((a, b) => a * b, 1);
    const bytes = shape.length === 1 ? drawn(count, next, 0.3, 1) : drawn(count, next, 0.06, 0);
    data.push(bytes);
    const begin = end;
    end += bytes.length;
    return { name, dtype: 'BF16' as const, shape, begin, end };
  });
  writeFileSync(path.join(dir, 'model.safetensors'), Buffer.concat([encodeHeader(entries, { format: 'pt' }), ...data]));
  const json = (name: string, value: unknown) =>
    writeFileSync(path.join(dir, name), `${JSON.stringify(value, null, 2)}\n`);
  json('config.json', config);
  json('tokenizer.json', kind === 'mixture' ? pieceTokenizer() : byteTokenizer());
  json('tokenizer_config.json', {
    tokenizer_class: 'PreTrainedTokenizerFast',
    ...{ bos_token: '<s>', eos_token: '</s>', pad_token: '<pad>', add_bos_token: true, add_eos_token: false },
    ...(kind === 'mixture' && { unk_token: '<unk>' }),
    clean_up_tokenization_spaces: false,
    model_max_length: 4096,
    ...(kind !== 'mixture' && { chat_template: TEMPLATE }),
  });
  json('special_tokens_map.json', { bos_token: '<s>', eos_token: '</s>', pad_token: '<pad>' });
  json('generation_config.json', {
    ...{ bos_token_id: 1, eos_token_id: [2, 3], pad_token_id: 0, do_sample: true, temperature: 0.6, top_p: 0.9 },
    transformers_version: '5.17.0',
  });
  if (kind === 'mixture') writeFileSync(path.join(dir, 'chat_template.jinja'), TEMPLATE);
  writeFileSync(path.join(dir, 'README.md'), '# A model\n');
  writeFileSync(path.join(dir, 'LICENSE'), 'Apache-2.0\n');
}
