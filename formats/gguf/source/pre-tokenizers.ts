import { PRE_TOKENIZERS } from '../tokenizer.js';

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

/** The patterns that lpq writes, by their names. */
const PATTERNS = Object.fromEntries(Object.entries(PRE_TOKENIZERS).map(([pattern, name]) => [name, pattern]));

const llama3: PreTokenizer = {
  pre_tokenizer: sequence(split(PATTERNS['llama-bpe'] as string), BYTES),
  ignore_merges: true,
  bos: true,
};
const cl100k: PreTokenizer = { pre_tokenizer: llama3.pre_tokenizer };
const qwen2: PreTokenizer = { pre_tokenizer: sequence(split(PATTERNS.qwen2 as string), BYTES), normalizer: NFC };
const gpt2: PreTokenizer = { pre_tokenizer: GPT2 };
/** Each digit is a word. */
const digits: PreTokenizer = { pre_tokenizer: sequence(split('\\p{N}'), GPT2) };

const UPPER = '[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]';
const LOWER = '[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]';
const TAIL = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?";
const REST = ' ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+';

/** o200k: words begin anew at capitals. */
const o200k: PreTokenizer = {
  pre_tokenizer: sequence(
    split(
      `[^\\r\\n\\p{L}\\p{N}]?${UPPER}*${LOWER}+${TAIL}|[^\\r\\n\\p{L}\\p{N}]?${UPPER}+${LOWER}*${TAIL}|\\p{N}{1,3}|${REST}`,
    ),
    BYTES,
  ),
};

const tekken: PreTokenizer = {
  pre_tokenizer: sequence(
    split(`[^\\r\\n\\p{L}\\p{N}]?${UPPER}*${LOWER}+|[^\\r\\n\\p{L}\\p{N}]?${UPPER}+${LOWER}*|\\p{N}|${REST}`),
    BYTES,
  ),
  ignore_merges: true,
};

const deepseekV3: PreTokenizer = {
  pre_tokenizer: sequence(
    split('\\p{N}{1,3}'),
    split('[一-龥぀-ゟ゠-ヿ]+'),
    split(
      '[!"#$%&\'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+',
    ),
    BYTES,
  ),
};

/** By tokenizer.ggml.pre. */
export const SOURCE_PRE_TOKENIZERS: Readonly<Record<string, PreTokenizer>> = {
  'llama-bpe': llama3,
  llama3,
  'llama-v3': llama3,
  falcon3: llama3,
  dbrx: cl100k,
  'smaug-bpe': cl100k,
  'chatglm-bpe': cl100k,
  glm4: cl100k,
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
  'deepseek-v3': deepseekV3,
};
