import type { GgufFacts } from './facts.js';
import { badGguf } from './file.js';
import { scoredMerges } from './merges.js';
import { SOURCE_PRE_TOKENIZERS } from './pre-tokenizers.js';

type Json = Readonly<Record<string, unknown>>;

/** tokenizer.ggml.token_type. */
const TYPE = { normal: 1, unknown: 2, control: 3, userDefined: 4, unused: 5, byte: 6 } as const;

interface Tokens {
  readonly list: readonly string[];
  readonly types: readonly number[];
  readonly bos: number | undefined;
  readonly unknown: number | undefined;
}

/**
 * The files of a checkpoint that say how text becomes tokens, from tokenizer.ggml.*: tokenizer.json, tokenizer_config.json with
 * the chat template, generation_config.json; and sentences about what could not be made. Throws LPQ_GGUF for lists that do not
 * fit each other.
 */
export function sourceTokenizer(facts: GgufFacts, config: Json): { files: Record<string, string>; notes: string[] } {
  const key = (name: string) => `tokenizer.ggml.${name}`;
  const files: Record<string, string> = { 'generation_config.json': printed(generation(facts)) };
  const model = facts.text(key('model')) ?? 'none';
  const list = facts.list<string>(key('tokens'), 'string') ?? [];
  if (list.length === 0) return { files, notes: ['The file holds no tokenizer: texts cannot be read.'] };
  const types = facts.list<number>(key('token_type'), 'number') ?? list.map(() => TYPE.normal);
  const vocab = Number(config.vocab_size);
  if (types.length !== list.length || list.length > vocab)
    badGguf(facts.file.path, 'its tokens, their types and the rows of the embeddings do not match', {
      got: `${list.length} tokens, ${types.length} types, ${vocab} rows`,
    });
  const tokens: Tokens = {
    list,
    types,
    bos: facts.optional(key('bos_token_id')),
    unknown: facts.optional(key('unknown_token_id')),
  };
  const pre = facts.text(key('pre')) ?? 'default';
  const made =
    model === 'gpt2' ? byteBpe(facts, tokens, pre) : model === 'llama' ? scoredBpe(facts, tokens) : undefined;
  const notes: string[] = [];
  if (made?.json) files['tokenizer.json'] = `${JSON.stringify({ ...HEAD, ...made.json })}\n`;
  else
    notes.push(
      `lpq makes no tokenizer of this file (${model}${model === 'gpt2' ? `, pre-tokenizer '${pre}'` : ''}): texts cannot be read.`,
    );
  files['tokenizer_config.json'] = printed({
    ...settings(facts, tokens),
    add_bos_token: made?.bos ?? false,
    add_eos_token: facts.flag(key('add_eos_token')) ?? false,
  });
  return { files, notes };
}

const HEAD = { version: '1.0', truncation: null, padding: null };
const printed = (value: unknown): string => `${JSON.stringify(value, null, 2)}\n`;

/** BPE of bytes (GPT-2, Llama 3, Qwen); undefined for a pre-tokenizer that lpq does not know. */
function byteBpe(facts: GgufFacts, tokens: Tokens, pre: string) {
  const words = Object.hasOwn(SOURCE_PRE_TOKENIZERS, pre) ? SOURCE_PRE_TOKENIZERS[pre] : undefined;
  if (!words) return undefined;
  const merges = facts.list<string>('tokenizer.ggml.merges', 'string');
  if (!merges) return badGguf(facts.file.path, "the key 'tokenizer.ggml.merges' is missing");
  const bos = facts.flag('tokenizer.ggml.add_bos_token') ?? words.bos ?? false;
  return {
    bos,
    json: {
      added_tokens: addedTokens(tokens, ({ type }) => type === TYPE.control || type === TYPE.userDefined),
      normalizer: words.normalizer ?? null,
      pre_tokenizer: words.pre_tokenizer,
      post_processor: ends(facts, tokens, bos),
      decoder: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true },
      model: {
        ...BPE,
        unk_token: null,
        byte_fallback: false,
        ignore_merges: words.ignore_merges ?? false,
        vocab: vocabulary(tokens),
        merges,
      },
    },
  };
}

const BPE = { type: 'BPE', dropout: null, continuing_subword_prefix: null, end_of_word_suffix: null, fuse_unk: false };

/** BPE of characters with bytes for what has no token, merged in the order of scores (Llama 2, Gemma, Phi 3). */
function scoredBpe(facts: GgufFacts, tokens: Tokens) {
  const scores = facts.list<number>('tokenizer.ggml.scores', 'number');
  if (scores?.length !== tokens.list.length)
    return badGguf(facts.file.path, 'its tokens have no scores, or too few or too many', {
      got: scores?.length ?? 'none',
    });
  const prefix = facts.flag('tokenizer.ggml.add_space_prefix') ?? true;
  const bos = facts.flag('tokenizer.ggml.add_bos_token') ?? true;
  const spaces = { type: 'Replace', pattern: { String: ' ' }, content: '▁' };
  // Runs of spaces are merged, not found in the text, where they are spaces still.
  const list = tokens.list.map((token) => (/^ +$/.test(token) ? '▁'.repeat(token.length) : token));
  const pieces = { ...tokens, list };
  const merged = list.map((_, id) => [TYPE.normal, TYPE.userDefined].includes(tokens.types[id] as 1));
  const unknown = tokens.unknown ?? tokens.types.indexOf(TYPE.unknown);
  const found = (type: number, token: string) =>
    type === TYPE.control || type === TYPE.unknown || (type === TYPE.userDefined && !/^▁+$/.test(token));
  return {
    bos,
    json: {
      added_tokens: addedTokens(pieces, ({ type, token }) => found(type, token)),
      normalizer: prefix ? { type: 'Sequence', normalizers: [{ type: 'Prepend', prepend: '▁' }, spaces] } : spaces,
      pre_tokenizer: null,
      post_processor: ends(facts, tokens, bos),
      decoder: {
        type: 'Sequence',
        decoders: [
          { type: 'Replace', pattern: { String: '▁' }, content: ' ' },
          { type: 'ByteFallback' },
          { type: 'Fuse' },
          ...(prefix ? [{ type: 'Strip', content: ' ', start: 1, stop: 0 }] : []),
        ],
      },
      model: {
        ...BPE,
        fuse_unk: true,
        unk_token: tokens.list[unknown] ?? null,
        byte_fallback: tokens.types.includes(TYPE.byte),
        ignore_merges: false,
        vocab: vocabulary(pieces),
        merges: scoredMerges(list, scores, merged),
      },
    },
  };
}

/** Every token but rows that stand for none; the first of two of the same text. */
function vocabulary({ list, types }: Tokens): Record<string, number> {
  const vocab: Record<string, number> = Object.create(null);
  for (const [id, token] of list.entries())
    if (types[id] !== TYPE.unused && vocab[token] === undefined) vocab[token] = id;
  return vocab;
}

/** Tokens that are found in a text before it is cut into words. */
function addedTokens({ list, types }: Tokens, found: (each: { type: number; token: string }) => boolean): unknown[] {
  return list.flatMap((content, id) => {
    const type = types[id] as number;
    if (!found({ type, token: content })) return [];
    const special = type !== TYPE.userDefined;
    return [{ id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special }];
  });
}

/** What stands before and behind every text. */
function ends(facts: GgufFacts, { list, bos }: Tokens, first: boolean): unknown {
  const eos = facts.optional('tokenizer.ggml.eos_token_id');
  const last = facts.flag('tokenizer.ggml.add_eos_token') ?? false;
  const before = first && bos !== undefined ? [bos] : [];
  const behind = last && eos !== undefined ? [eos] : [];
  if (before.length + behind.length === 0) return null;
  const token = (id: number, type_id: number) => ({ SpecialToken: { id: list[id], type_id } });
  const around = (name: string, type_id: number) => [
    ...before.map((id) => token(id, type_id)),
    { Sequence: { id: name, type_id } },
    ...behind.map((id) => token(id, type_id)),
  ];
  return {
    type: 'TemplateProcessing',
    single: around('A', 0),
    pair: [...around('A', 0), ...around('B', 1)],
    special_tokens: Object.fromEntries(
      [...before, ...behind].map((id) => [list[id], { id: list[id], ids: [id], tokens: [list[id]] }]),
    ),
  };
}

function settings(facts: GgufFacts, { list }: Tokens): Json {
  const named: Record<string, unknown> = {
    tokenizer_class: 'PreTrainedTokenizerFast',
    clean_up_tokenization_spaces: false,
  };
  for (const [key, name] of [
    ['bos', 'bos_token'],
    ['eos', 'eos_token'],
    ['unknown', 'unk_token'],
    ['padding', 'pad_token'],
  ] as const) {
    const id = facts.optional(`tokenizer.ggml.${key}_token_id`);
    if (id !== undefined && list[id] !== undefined) named[name] = list[id];
  }
  const template = facts.text('tokenizer.chat_template');
  return { ...named, ...(template !== undefined && { chat_template: template }) };
}

/** Tokens that end a text: of the whole, of a turn, of a message. */
function generation(facts: GgufFacts): Json {
  const id = (key: string) => facts.optional(`tokenizer.ggml.${key}_token_id`);
  const stops = [...new Set(['eos', 'eot', 'eom'].map(id).filter((each) => each !== undefined))];
  const [bos, pad] = [id('bos'), id('padding')];
  return {
    ...(bos !== undefined && { bos_token_id: bos }),
    ...(stops.length > 0 && { eos_token_id: stops.length === 1 ? stops[0] : stops }),
    ...(pad !== undefined && { pad_token_id: pad }),
  };
}
