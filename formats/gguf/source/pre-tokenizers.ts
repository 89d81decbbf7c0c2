import { SPLITS } from '../pre-tokenizers.js';

/** How text is cut into words before BPE, as parts of tokenizer.json. */
export interface PreTokenizer {
  readonly pre_tokenizer: unknown;
  readonly normalizer?: unknown;
  /** Words that are tokens are not merged. */
  readonly ignore_merges?: boolean;
  /** Whether a file that does not say so puts the bos token first. */
  readonly bos?: boolean;
}

const BYTES = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: false };
const GPT2 = { ...BYTES, use_regex: true };
const NFC = { type: 'NFC' };

const split = (Regex: string): unknown => ({
  type: 'Split',
  pattern: { Regex },
  behavior: 'Isolated',
  invert: false,
});

const sequence = (...pretokenizers: readonly unknown[]): unknown => ({ type: 'Sequence', pretokenizers });

/** What lpq writes under a name. */
const named = (name: string): unknown => {
  const { patterns, words } = SPLITS[name] as (typeof SPLITS)[string];
  const last = words === 'bytes' ? BYTES : GPT2;
  return patterns.length === 0 ? last : sequence(...patterns.map(split), last);
};

const llama3: PreTokenizer = { pre_tokenizer: named('llama-bpe'), ignore_merges: true, bos: true };
const cl100k: PreTokenizer = { pre_tokenizer: llama3.pre_tokenizer };
const glm4: PreTokenizer = { ...cl100k, ignore_merges: true };
const qwen2: PreTokenizer = { pre_tokenizer: named('qwen2'), normalizer: NFC };
const gpt2: PreTokenizer = { pre_tokenizer: GPT2 };
const digits: PreTokenizer = { pre_tokenizer: named('starcoder') };
/** Words begin anew at capitals. */
const o200k: PreTokenizer = { pre_tokenizer: named('gpt-4o') };
const tekken: PreTokenizer = { pre_tokenizer: named('tekken'), ignore_merges: true };
const deepseekV3: PreTokenizer = { pre_tokenizer: named('deepseek-v3') };

/** By tokenizer.ggml.pre. */
export const SOURCE_PRE_TOKENIZERS: Readonly<Record<string, PreTokenizer>> = {
  'llama-bpe': llama3,
  llama3,
  'llama-v3': llama3,
  falcon3: llama3,
  'falcon-h1': llama3,
  lfm2: llama3,
  dbrx: cl100k,
  'smaug-bpe': cl100k,
  'chatglm-bpe': cl100k,
  glm4,
  qwen2,
  'deepseek-r1-qwen': qwen2,
  megrez: qwen2,
  stablelm2: { pre_tokenizer: qwen2.pre_tokenizer },
  'gpt-2': gpt2,
  mpt: gpt2,
  'phi-2': gpt2,
  olmo: { ...gpt2, normalizer: NFC },
  smollm: digits,
  starcoder: digits,
  refact: digits,
  codeshell: digits,
  'command-r': { ...digits, normalizer: NFC, bos: true },
  'gpt-4o': o200k,
  llama4: { ...o200k, bos: true },
  tekken,
  qwen35: { pre_tokenizer: named('qwen35'), normalizer: NFC },
  'seed-coder': { pre_tokenizer: named('seed-coder') },
  'minimax-m2': o200k,
  'deepseek-v3': deepseekV3,
};
