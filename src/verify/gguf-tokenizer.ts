import { existsSync } from 'node:fs';
import path from 'node:path';
import { readRegularText } from '../../formats/directory/read-file.js';
import type { GgufValue } from '../../formats/gguf/metadata.js';
import { splitsName } from '../../formats/gguf/pre-tokenizers.js';
import type { Entry } from './gguf-header.js';

// What tokenizer.ggml.* must be, from the files of the model: read by code of the verifier's own, for the packer's reading is
// what is proved; only the names of splits come from the table of the format.

type Json = Readonly<Record<string, unknown>>;

/** Kinds of tokens: llama.h, enum llama_token_type. */
const NORMAL = 1;
const UNKNOWN = 2;
const CONTROL = 3;
const USER_DEFINED = 4;
const UNUSED = 5;
const BYTE = 6;

const object = (value: unknown): Json => (typeof value === 'object' && value !== null ? (value as Json) : {});
const list = (value: unknown): readonly unknown[] => (Array.isArray(value) ? value : []);
const string = (value: string): GgufValue => ({ type: 'string', value });

/**
 * The keys of the tokenizer, in the order of the file, for `rows` rows of embeddings. Throws SyntaxError or TypeError for
 * files that are no JSON or have another form.
 */
export function expectedTokenizer(dir: string, config: Json, rows: number): Entry[] {
  if (!existsSync(path.join(dir, 'tokenizer.json'))) return [['tokenizer.ggml.model', string('none')]];
  const json = readJson(dir, 'tokenizer.json');
  const settings = readJson(dir, 'tokenizer_config.json');
  const model = object(json.model);
  const fallback = model.byte_fallback === true;
  const { tokens, kinds } = tokenTable(json, model, rows, fallback);
  const pairs = list(model.merges).map((each) => (Array.isArray(each) ? `${each[0]} ${each[1]}` : String(each)));
  const common: readonly Entry[] = [['tokenizer.ggml.tokens', { type: 'strings', value: tokens }]];
  const types: Entry = ['tokenizer.ggml.token_type', { type: 'i32s', value: kinds }];
  const vocabulary: readonly Entry[] = fallback
    ? [
        ['tokenizer.ggml.model', string('llama')],
        ['tokenizer.ggml.pre', string('default')],
        ...common,
        ['tokenizer.ggml.scores', { type: 'f32s', value: mergeScores(tokens, kinds, pairs) }],
        types,
        [
          'tokenizer.ggml.add_space_prefix',
          { type: 'bool', value: prefixesSpace([json.normalizer, json.pre_tokenizer]) },
        ],
      ]
    : [
        ['tokenizer.ggml.model', string('gpt2')],
        [
          'tokenizer.ggml.pre',
          string(splitsName(json.pre_tokenizer ?? undefined, model.ignore_merges === true) ?? 'default'),
        ],
        ...common,
        types,
        ['tokenizer.ggml.merges', { type: 'strings', value: pairs }],
      ];
  return [...vocabulary, ...specials(dir, config, settings, tokens, json.post_processor), ...template(dir, settings)];
}

function tokenTable(json: Json, model: Json, rows: number, fallback: boolean) {
  const table = new Map<number, readonly [token: string, kind: number]>();
  const unknown = typeof model.unk_token === 'string' ? model.unk_token : '<unk>';
  for (const [token, id] of Object.entries(object(model.vocab))) table.set(Number(id), [token, NORMAL]);
  for (const added of list(json.added_tokens).map(object))
    table.set(Number(added.id), [String(added.content), added.special === true ? CONTROL : USER_DEFINED]);
  const tokens: string[] = [];
  const kinds: number[] = [];
  for (let id = 0; id < rows; id++) {
    const [token, kind] = table.get(id) ?? [`[PAD${id}]`, UNUSED];
    tokens.push(token);
    // With byte fallback the spelling says what a token is, added or not.
    if (fallback && token === unknown) kinds.push(UNKNOWN);
    else if (fallback && token.length === 6 && /^<0x[\dA-F]+>$/.test(token)) kinds.push(BYTE);
    else kinds.push(kind);
  }
  return { tokens, kinds };
}

/** llama.cpp joins the pair whose result scores highest: minus the place of the first merge that makes it. */
function mergeScores(tokens: readonly string[], kinds: readonly number[], pairs: readonly string[]): number[] {
  const places = new Map<string, number>();
  for (let place = pairs.length - 1; place >= 0; place--) {
    const pair = pairs[place] as string;
    const gap = pair.indexOf(' ');
    places.set(gap < 0 ? pair : pair.slice(0, gap) + pair.slice(gap + 1), place);
  }
  return tokens.map((token, id) => {
    if (kinds[id] !== NORMAL) return 0;
    return -1 * (places.get(token) ?? pairs.length + id);
  });
}

/** Whether any part of a normalizer or a pre-tokenizer puts a space before the text. */
function prefixesSpace(part: unknown): boolean {
  if (Array.isArray(part)) return part.some(prefixesSpace);
  const { type, prepend_scheme: scheme, add_prefix_space: prefix, ...rest } = object(part);
  if (type === 'Prepend' || scheme === 'first' || scheme === 'always' || prefix === true) return true;
  return Object.values(rest).some(prefixesSpace);
}

function specials(dir: string, config: Json, settings: Json, tokens: readonly string[], processor: unknown): Entry[] {
  const generation = readJson(dir, 'generation_config.json');
  const find = (kind: string): number | undefined => {
    const said = settings[`${kind}_token`];
    const content = typeof said === 'string' ? said : object(said).content;
    const place = typeof content === 'string' ? tokens.indexOf(content) : -1;
    if (place >= 0) return place;
    return [config, generation]
      .map((from) => from[`${kind}_token_id`])
      .map((id) => (Array.isArray(id) ? id[0] : id))
      .find((id): id is number => typeof id === 'number' && id >= 0 && id < tokens.length);
  };
  const ids: Record<string, number | undefined> = {
    bos: find('bos'),
    eos: find('eos'),
    unknown: find('unk'),
    padding: find('pad'),
  };
  const flag = (value: boolean): GgufValue => ({ type: 'bool', value });
  const said = (kind: string): boolean | undefined => {
    const value = settings[`add_${kind}_token`];
    return typeof value === 'boolean' ? value : undefined;
  };
  const first = ids.bos === undefined ? undefined : tokens[ids.bos];
  return [
    ...Object.entries(ids).flatMap(([name, id]): Entry[] =>
      id === undefined ? [] : [[`tokenizer.ggml.${name}_token_id`, { type: 'u32', value: id }]],
    ),
    ['tokenizer.ggml.add_bos_token', flag(said('bos') ?? (first !== undefined && puts(processor, first)))],
    ['tokenizer.ggml.add_eos_token', flag(said('eos') ?? false)],
  ];
}

/** Whether a post-processor begins a single text with `token`. */
function puts(processor: unknown, token: string): boolean {
  const { type, processors, single } = object(processor);
  if (type === 'Sequence') return list(processors).some((each) => puts(each, token));
  return type === 'TemplateProcessing' && object(object(list(single)[0]).SpecialToken).id === token;
}

function template(dir: string, settings: Json): Entry[] {
  const file = path.join(dir, 'chat_template.jinja');
  const said = settings.chat_template;
  const named = list(said)
    .map(object)
    .find(({ name }) => name === 'default')?.template;
  const found = existsSync(file) ? readRegularText(file) : Array.isArray(said) ? named : said;
  return typeof found === 'string' ? [['tokenizer.chat_template', string(found)]] : [];
}

/** {} for a file that is not there. */
function readJson(dir: string, name: string): Json {
  const file = path.join(dir, name);
  return existsSync(file) ? object(JSON.parse(readRegularText(file))) : {};
}
