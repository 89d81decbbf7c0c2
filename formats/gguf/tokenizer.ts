import { existsSync } from 'node:fs';
import path from 'node:path';
import { LpqError } from '../../src/core/error.js';
import { readRegularText } from '../directory/read-file.js';
import { bool, type GgufValue, text, u32 } from './metadata.js';
import { type PreTokenizer, splitsName } from './pre-tokenizers.js';

/** tokenizer.ggml.token_type. */
const TYPE = { normal: 1, unknown: 2, control: 3, userDefined: 4, unused: 5, byte: 6 } as const;

interface AddedToken {
  readonly id: number;
  readonly content: string;
  readonly special?: boolean;
}

interface TokenizerJson {
  readonly model?: {
    readonly type?: string;
    readonly vocab?: Readonly<Record<string, number>>;
    readonly merges?: readonly (string | readonly [string, string])[];
    readonly byte_fallback?: boolean;
    readonly ignore_merges?: boolean;
    readonly unk_token?: string | null;
  };
  readonly added_tokens?: readonly AddedToken[];
  readonly pre_tokenizer?: PreTokenizer | null;
  readonly post_processor?: unknown;
}

/**
 * tokenizer.ggml.* from tokenizer.json, tokenizer_config.json, generation_config.json, chat_template.jinja and config.json,
 * for `vocab` rows of embeddings; with sentences about what could not be said. Without tokenizer.json the file says that it
 * has none. Throws LPQ_CONFIG for files that cannot be read, LPQ_TARGET for a tokenizer that llama.cpp does not have.
 */
export function ggufTokenizer(
  dir: string,
  config: Readonly<Record<string, unknown>>,
  vocab: number,
): { metadata: ReadonlyMap<string, GgufValue>; notes: readonly string[] } {
  const file = path.join(dir, 'tokenizer.json');
  if (!existsSync(file))
    return {
      metadata: new Map([['tokenizer.ggml.model', text('none')]]),
      notes: ['There is no tokenizer.json, so the file holds no tokenizer: programs must pass token ids.'],
    };
  const json = readJson(file) as TokenizerJson;
  const settings = (readJson(path.join(dir, 'tokenizer_config.json')) ?? {}) as Record<string, unknown>;
  const { model = {}, added_tokens: added = [] } = json;
  const refuse = (what: string, got: unknown): never => {
    throw new LpqError('LPQ_TARGET', `${file} is not a tokenizer that lpq can write to GGUF: ${what}`, {
      got: String(got),
      expected: 'BPE of bytes (GPT-2, Llama 3, Qwen) or BPE with byte fallback (Llama 2, Mistral)',
    });
  };
  if ((model.type ?? 'BPE') !== 'BPE' || !model.vocab || !model.merges) return refuse('its model', model.type);
  const { tokens, types } = tokenList(file, model.vocab, added, vocab);
  const merges = model.merges.map((pair) => (typeof pair === 'string' ? pair : pair.join(' ')));
  const entries: [string, GgufValue][] = [];
  const notes: string[] = [];
  if (model.byte_fallback) {
    for (const [id, token] of tokens.entries())
      if (/^<0x[0-9A-F]{2}>$/.test(token)) types[id] = TYPE.byte;
      else if (token === (model.unk_token ?? '<unk>')) types[id] = TYPE.unknown;
    entries.push(
      ['tokenizer.ggml.model', text('llama')],
      ['tokenizer.ggml.pre', text('default')],
      ['tokenizer.ggml.tokens', { type: 'strings', value: tokens }],
      ['tokenizer.ggml.scores', { type: 'f32s', value: scores(tokens, types, merges) }],
      ['tokenizer.ggml.token_type', { type: 'i32s', value: types }],
      ['tokenizer.ggml.add_space_prefix', bool(addsSpace(json))],
    );
  } else {
    const pre = splitsName(json.pre_tokenizer, model.ignore_merges ?? false);
    if (!pre) {
      notes.push('llama.cpp may split text differently: lpq knows no name for the pattern of tokenizer.json.');
    }
    entries.push(
      ['tokenizer.ggml.model', text('gpt2')],
      ['tokenizer.ggml.pre', text(pre ?? 'default')],
      ['tokenizer.ggml.tokens', { type: 'strings', value: tokens }],
      ['tokenizer.ggml.token_type', { type: 'i32s', value: types }],
      ['tokenizer.ggml.merges', { type: 'strings', value: merges }],
    );
  }
  entries.push(...specialIds(dir, config, settings, tokens, json));
  const template = chatTemplate(dir, settings);
  if (template !== undefined) entries.push(['tokenizer.chat_template', text(template)]);
  return { metadata: new Map(entries), notes };
}

function tokenList(
  file: string,
  vocabulary: Readonly<Record<string, number>>,
  added: readonly AddedToken[],
  vocab: number,
) {
  const tokens = Array.from({ length: vocab }, (_, id) => `[PAD${id}]`);
  const types: number[] = new Array(vocab).fill(TYPE.unused);
  const place = (token: string, id: number, type: number): void => {
    if (!Number.isInteger(id) || id < 0 || id >= vocab)
      throw new LpqError('LPQ_CONFIG', `${file}: token ${JSON.stringify(token)} has no row in the embeddings`, {
        got: id,
        expected: `0 to ${vocab - 1}`,
      });
    tokens[id] = token;
    types[id] = type;
  };
  for (const [token, id] of Object.entries(vocabulary)) place(token, id, TYPE.normal);
  for (const { content, id, special } of added) place(content, id, special ? TYPE.control : TYPE.userDefined);
  return { tokens, types };
}

/** Merges happen in the order of their scores, so the rank of the merge that makes a token decides its score. */
function scores(tokens: readonly string[], types: readonly number[], merges: readonly string[]): number[] {
  const rank = new Map<string, number>();
  for (const [i, merge] of merges.entries()) {
    const token = merge.replace(' ', '');
    if (!rank.has(token)) rank.set(token, i);
  }
  return tokens.map((token, id) => (types[id] === TYPE.normal ? -(rank.get(token) ?? merges.length + id) : 0));
}

function addsSpace(json: TokenizerJson): boolean {
  const said = JSON.stringify([(json as { normalizer?: unknown }).normalizer, json.pre_tokenizer]);
  return (
    /"Prepend"/.test(said) || /"prepend_scheme":"(first|always)"/.test(said) || /"add_prefix_space":true/.test(said)
  );
}

function specialIds(
  dir: string,
  config: Readonly<Record<string, unknown>>,
  settings: Readonly<Record<string, unknown>>,
  tokens: readonly string[],
  json: TokenizerJson,
): [string, GgufValue][] {
  const generation = (readJson(path.join(dir, 'generation_config.json')) ?? {}) as Record<string, unknown>;
  const entries: [string, GgufValue][] = [];
  const idOf = (kind: string): number | undefined => {
    const token = settings[`${kind}_token`];
    const content = typeof token === 'string' ? token : (token as { content?: unknown } | null)?.content;
    if (typeof content === 'string' && tokens.includes(content)) return tokens.indexOf(content);
    for (const from of [config, generation]) {
      const value = from[`${kind}_token_id`];
      const first = Array.isArray(value) ? value[0] : value;
      if (typeof first === 'number' && first >= 0 && first < tokens.length) return first;
    }
    return undefined;
  };
  for (const [kind, key] of [
    ['bos', 'bos'],
    ['eos', 'eos'],
    ['unk', 'unknown'],
    ['pad', 'padding'],
  ] as const) {
    const id = idOf(kind);
    if (id !== undefined) entries.push([`tokenizer.ggml.${key}_token_id`, u32(id)]);
  }
  const bos = idOf('bos');
  const adds = (kind: 'bos' | 'eos'): boolean => {
    const said = settings[`add_${kind}_token`];
    if (typeof said === 'boolean') return said;
    const content = kind === 'bos' && bos !== undefined ? tokens[bos] : undefined;
    return content !== undefined && templateStarts(json.post_processor, content);
  };
  entries.push(['tokenizer.ggml.add_bos_token', bool(adds('bos'))]);
  entries.push(['tokenizer.ggml.add_eos_token', bool(adds('eos'))]);
  return entries;
}

/** Whether the post-processor (or one of a sequence) puts this token before every text. */
function templateStarts(processor: unknown, token: string): boolean {
  const { type, single, processors } = (processor ?? {}) as {
    type?: string;
    single?: readonly { SpecialToken?: { id?: string } }[];
    processors?: readonly unknown[];
  };
  if (type === 'Sequence') return (processors ?? []).some((each) => templateStarts(each, token));
  return type === 'TemplateProcessing' && single?.[0]?.SpecialToken?.id === token;
}

function chatTemplate(dir: string, settings: Readonly<Record<string, unknown>>): string | undefined {
  const own = path.join(dir, 'chat_template.jinja');
  if (existsSync(own)) return readRegularText(own);
  const { chat_template: said } = settings;
  if (typeof said === 'string') return said;
  const named = Array.isArray(said) ? said.find(({ name }) => name === 'default') : undefined;
  return typeof named?.template === 'string' ? named.template : undefined;
}

function readJson(file: string): unknown {
  if (!existsSync(file)) return undefined;
  try {
    return JSON.parse(readRegularText(file));
  } catch (cause) {
    throw new LpqError('LPQ_CONFIG', `${file} cannot be read: ${(cause as Error).message}`, { cause });
  }
}
