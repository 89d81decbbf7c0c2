/** A pre-tokenizer of tokenizer.json. */
export interface PreTokenizer {
  readonly type?: string;
  readonly use_regex?: boolean;
  readonly add_prefix_space?: boolean;
  readonly individual_digits?: boolean;
  readonly behavior?: string;
  readonly invert?: boolean;
  readonly pretokenizers?: readonly PreTokenizer[];
  readonly pattern?: { readonly Regex?: string };
}

const ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const WORD = '[^\\r\\n\\p{L}\\p{N}]?\\p{L}+';
const SPACES = '\\s+(?!\\S)|\\s+';
const REST = ` ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|${SPACES}`;
const UPPER = '[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]';
const LOWER = '[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]';
const SLASHES = ` ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|${SPACES}`;
const cased = (after: string): string =>
  `[^\\r\\n\\p{L}\\p{N}]?${UPPER}*${LOWER}+${after}|[^\\r\\n\\p{L}\\p{N}]?${UPPER}+${LOWER}*${after}`;

/** Expressions of which each match is a word, and what becomes of the words: bytes, or the words of GPT-2's expression first. */
export interface Splits {
  readonly patterns: readonly string[];
  readonly words: 'bytes' | 'gpt-2';
  /** Words that are tokens are not merged; llama.cpp's name says it. */
  readonly ignoresMerges?: boolean;
}

/** What llama.cpp calls ways of cutting text into words (tokenizer.ggml.pre). Of two that differ in merges alone the usual one is first. */
export const SPLITS: Readonly<Record<string, Splits>> = {
  'llama-bpe': { patterns: [`${ENDINGS}|${WORD}|\\p{N}{1,3}|${REST}`], words: 'bytes', ignoresMerges: true },
  dbrx: { patterns: [`${ENDINGS}|${WORD}|\\p{N}{1,3}|${REST}`], words: 'bytes', ignoresMerges: false },
  qwen2: { patterns: [`${ENDINGS}|${WORD}|\\p{N}|${REST}`], words: 'bytes' },
  qwen35: {
    patterns: [
      `${ENDINGS}|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|${SPACES}`,
    ],
    words: 'bytes',
  },
  'seed-coder': {
    patterns: [`${ENDINGS}|${WORD}|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|\\s*[\\r\\n]+|${SPACES}`],
    words: 'bytes',
  },
  'gpt-4o': { patterns: [`${cased(`${ENDINGS}?`)}|\\p{N}{1,3}|${SLASHES}`], words: 'bytes' },
  tekken: { patterns: [`${cased('')}|\\p{N}|${SLASHES}`], words: 'bytes' },
  'deepseek-v3': {
    patterns: [
      '\\p{N}{1,3}',
      '[一-龥぀-ゟ゠-ヿ]+',
      `[!"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_\`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|${SPACES}`,
    ],
    words: 'bytes',
  },
  /** Each digit is a word. */
  starcoder: { patterns: ['\\p{N}'], words: 'gpt-2' },
  'gpt-2': { patterns: [], words: 'gpt-2' },
};

/** The expression of GPT-2's, as the files of some tokenizers spell what others write with (?i:). */
const SPELLED = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])";

/** What llama.cpp calls a pre-tokenizer; undefined where it has no name for it. */
export function splitsName(pre: PreTokenizer | null | undefined, ignoresMerges: boolean): string | undefined {
  const parts = pre ? flat(pre) : [];
  const last = parts.at(-1);
  if (last?.type !== 'ByteLevel' || last.add_prefix_space === true) return undefined;
  const patterns = parts.slice(0, -1).map(patternOf);
  const words = last.use_regex === false ? 'bytes' : 'gpt-2';
  const same = Object.entries(SPLITS).filter(
    ([, own]) => own.words === words && `${own.patterns}` === `${patterns.map((each) => each ?? '?')}`,
  );
  const [name] = same.find(([, own]) => (own.ignoresMerges ?? ignoresMerges) === ignoresMerges) ?? [];
  return name;
}

const flat = (pre: PreTokenizer): readonly PreTokenizer[] =>
  pre.type === 'Sequence' ? (pre.pretokenizers ?? []).flatMap(flat) : [pre];

/** The expression whose matches are words; undefined for another kind of part. */
function patternOf({ type, pattern, behavior, invert, individual_digits: single }: PreTokenizer): string | undefined {
  if (type === 'Digits' && single) return '\\p{N}';
  // To take away all but the matches is the same, where they leave nothing.
  const isolates = behavior === undefined || (behavior === 'Isolated' && !invert) || (behavior === 'Removed' && invert);
  return type === 'Split' && isolates ? pattern?.Regex?.replaceAll(SPELLED, ENDINGS) : undefined;
}
