import path from 'node:path';
import { LpqError } from '../core/error.js';
import { readObject } from './model-file.js';

/** Whether a sequence begins as its tokenizer begins a text (auto), with the bos token in any case, or with the text itself. */
export type BosMode = 'auto' | 'always' | 'never';

/** Tokens that stand before a text: usually none or one, such as <s>; GLM has two. */
export interface Prefix {
  readonly ids: Int32Array;
  /** The tokens as the tokenizer names them, for people. */
  readonly tokens: readonly string[];
}

export const NO_PREFIX: Prefix = { ids: new Int32Array(), tokens: [] };

type Json = Readonly<Record<string, unknown>>;

/**
 * What stands before every text that a model reads. auto: what the post-processor of tokenizer.json puts there, as engines do; where it puts
 * nothing, the bos token if tokenizer_config.json says add_bos_token. always: the same, else the bos token of tokenizer_config.json,
 * special_tokens_map.json or config.json. What comes behind a text is none of it. Throws LPQ_CONFIG for files that are
 * malformed, and for `always` without a bos token.
 */
export function openPrefix(dir: string, mode: BosMode): Prefix {
  if (mode === 'never') return NO_PREFIX;
  const tokenizer = readObject(path.join(dir, 'tokenizer.json')) ?? {};
  const written = before(tokenizer.post_processor, path.join(dir, 'tokenizer.json'));
  if (written.ids.length > 0) return written;
  const settings = readObject(path.join(dir, 'tokenizer_config.json')) ?? {};
  if (mode === 'auto' && settings.add_bos_token !== true) return NO_PREFIX;
  const bos = bosToken(dir, tokenizer, settings);
  if (bos) return bos;
  // As transformers and llama.cpp do where a tokenizer wants a token that it does not have.
  if (mode === 'auto') return NO_PREFIX;
  throw new LpqError('LPQ_CONFIG', `${dir} names no bos token, and --bos always needs one`, {
    expected: 'bos_token in tokenizer_config.json, or bos_token_id in config.json',
    hint: 'Use --bos auto: this model has none.',
  });
}

/** Whether `ids` begins with the prefix from `at` on; never with an empty one. */
export function beginsWith(ids: Int32Array, prefix: Int32Array, at = 0): boolean {
  return prefix.length > 0 && prefix.every((id, i) => ids[at + i] === id);
}

/** The prefix and the text's tokens, which may begin with it themselves: then it is there once. */
export function withPrefix(ids: Int32Array, prefix: Int32Array): Int32Array {
  if (prefix.length === 0 || beginsWith(ids, prefix)) return ids;
  const all = new Int32Array(prefix.length + ids.length);
  all.set(prefix);
  all.set(ids, prefix.length);
  return all;
}

/** What a post-processor puts before a single text; those of a sequence one before the other. */
function before(processor: unknown, file: string): Prefix {
  const { type, single, special_tokens: special, cls, processors } = (processor ?? {}) as Json;
  if (type === 'Sequence' && Array.isArray(processors))
    return processors.map((each) => before(each, file)).reduce((all, each) => join(each, all), NO_PREFIX);
  if (type === 'BertProcessing' || type === 'RobertaProcessing') {
    const [token, id] = Array.isArray(cls) ? cls : [];
    return prefix([[token, id]], 'cls', file);
  }
  if (type !== 'TemplateProcessing' || !Array.isArray(single)) return NO_PREFIX;
  const end = single.findIndex((piece) => (piece as Json | null)?.Sequence !== undefined);
  const pairs = single.slice(0, Math.max(end, 0)).flatMap((piece) => {
    const name = (piece as { SpecialToken?: { id?: unknown } } | null)?.SpecialToken?.id;
    const { ids, tokens } = ((special ?? {}) as Record<string, Json | undefined>)[String(name)] ?? {};
    if (!Array.isArray(ids)) throw malformed(file, 'special_tokens', name);
    return ids.map((id, i): [unknown, unknown] => [Array.isArray(tokens) ? tokens[i] : name, id]);
  });
  return prefix(pairs, 'special_tokens', file);
}

function join(a: Prefix, b: Prefix): Prefix {
  return { ids: Int32Array.from([...a.ids, ...b.ids]), tokens: [...a.tokens, ...b.tokens] };
}

function prefix(pairs: readonly (readonly [token: unknown, id: unknown])[], key: string, file: string): Prefix {
  const wrong = pairs.find(([token, id]) => !isId(id) || typeof token !== 'string');
  if (wrong) throw malformed(file, key, wrong);
  return { ids: Int32Array.from(pairs, ([, id]) => id as number), tokens: pairs.map(([token]) => token as string) };
}

function malformed(file: string, key: string, got: unknown): LpqError {
  return new LpqError('LPQ_CONFIG', `the post_processor of ${file} is malformed: ${key} names no token with an id`, {
    got: JSON.stringify(got) ?? 'nothing',
  });
}

/** By its name, which the tokenizer must have; else by its id. */
function bosToken(dir: string, tokenizer: Json, settings: Json): Prefix | undefined {
  for (const from of [settings, readObject(path.join(dir, 'special_tokens_map.json')) ?? {}]) {
    const { bos_token: given } = from;
    const token = typeof given === 'string' ? given : (given as Json | null | undefined)?.content;
    const id = typeof token === 'string' ? idOf(tokenizer, token) : undefined;
    if (id !== undefined) return { ids: Int32Array.of(id), tokens: [token as string] };
  }
  const config = readObject(path.join(dir, 'config.json')) ?? {};
  for (const from of [config, (config.text_config ?? {}) as Json]) {
    const { bos_token_id: given } = from;
    const id = Array.isArray(given) ? given[0] : given;
    if (isId(id)) return { ids: Int32Array.of(id), tokens: [nameOf(tokenizer, id)] };
  }
  return undefined;
}

function isId(id: unknown): id is number {
  return Number.isInteger(id) && (id as number) >= 0 && (id as number) < 2 ** 31;
}

interface Vocabulary {
  readonly added_tokens?: readonly { readonly id?: unknown; readonly content?: unknown }[];
  readonly model?: { readonly vocab?: Readonly<Record<string, unknown>> | readonly unknown[] };
}

function idOf(tokenizer: Json, token: string): number | undefined {
  const { added_tokens: added = [], model } = tokenizer as Vocabulary;
  const own = added.find(({ content }) => content === token)?.id;
  if (isId(own)) return own;
  const vocab = model?.vocab;
  // Unigram lists pairs of a token and its score.
  const id = Array.isArray(vocab)
    ? vocab.findIndex((entry) => (entry as readonly unknown[] | null)?.[0] === token)
    : Object.hasOwn(vocab ?? {}, token) && (vocab as Record<string, unknown>)[token];
  return isId(id) ? id : undefined;
}

function nameOf(tokenizer: Json, id: number): string {
  const { added_tokens: added = [] } = tokenizer as Vocabulary;
  const name = added.find((each) => each.id === id)?.content;
  return typeof name === 'string' ? name : `token ${id}`;
}
