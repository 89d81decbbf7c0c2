import { existsSync } from 'node:fs';
import path from 'node:path';
import { Tokenizer } from '@huggingface/tokenizers';
import { readRegularText } from '../../../formats/directory/read-file.js';
import { LpqError } from '../../core/error.js';

/** Kinds of tokenizers that the library runs. */
const MODELS = ['BPE', 'Unigram', 'WordPiece'] as const;

/** A tokenizer within the confined process, where a call may take as long as its patterns let it. */
export interface SyncTokenizer {
  /** The regular expressions of tokenizer.json, for messages. */
  readonly patterns: readonly string[];
  encode(text: string, special: boolean): readonly number[];
  decode(ids: readonly number[]): string;
}

/** Throws LPQ_CONFIG. */
export function openSync(dir: string): SyncTokenizer {
  const file = path.join(dir, 'tokenizer.json');
  if (!existsSync(file)) {
    const other = ['tokenizer.model', 'vocab.json', 'spiece.model'].filter((name) => existsSync(path.join(dir, name)));
    throw new LpqError('LPQ_CONFIG', `${dir} has no tokenizer.json, which lpq needs to read text`, {
      got: other.length > 0 ? other.join(', ') : 'no tokenizer file',
      hint: 'Copy tokenizer.json from the original model; AutoTokenizer.save_pretrained writes it.',
    });
  }
  const settings = path.join(dir, 'tokenizer_config.json');
  const json = readObject(file);
  const config = existsSync(settings) ? readObject(settings) : {};
  requireModel(file, json);
  let tokenizer: Tokenizer;
  try {
    tokenizer = new Tokenizer(json, config);
  } catch (cause) {
    throw new LpqError('LPQ_CONFIG', `${file} is not a tokenizer that lpq can run: ${(cause as Error).message}`, {
      cause,
    });
  }
  /** Some of a tokenizer's settings are looked at only when text meets them. */
  const guarded = <T>(what: string, work: () => T): T => {
    try {
      return work();
    } catch (cause) {
      throw new LpqError('LPQ_CONFIG', `${file} cannot ${what}: ${(cause as Error).message}`, { cause });
    }
  };
  return {
    patterns: patternsOf(json),
    encode: (text, special) =>
      guarded('encode a text', () => tokenizer.encode(text, { add_special_tokens: special }).ids),
    decode: (ids) =>
      ids.length === 0
        ? ''
        : guarded('decode tokens', () =>
            tokenizer.decode([...ids], { skip_special_tokens: true, clean_up_tokenization_spaces: false }),
          ),
  };
}

/** The library takes a model of an unknown type for whatever its fields look like. Absent: BPE, in old files. */
function requireModel(file: string, json: { readonly model?: { readonly type?: unknown } | null }): void {
  const type = json.model?.type ?? 'BPE';
  if (MODELS.some((name) => name === type)) return;
  throw new LpqError('LPQ_CONFIG', `${file}: 'model' has a type that lpq cannot run`, {
    got: JSON.stringify(type),
    expected: MODELS.join(', '),
  });
}

/** Values under "Regex", outside the vocabulary. */
function patternsOf(json: Readonly<Record<string, unknown>>): string[] {
  const found: string[] = [];
  const open: unknown[] = [json.normalizer, json.pre_tokenizer, json.decoder];
  while (open.length > 0) {
    const value = open.shift();
    if (typeof value !== 'object' || value === null) continue;
    for (const [key, inner] of Object.entries(value))
      if (key === 'Regex' && typeof inner === 'string') found.push(inner);
      else open.push(inner);
  }
  return found;
}

function readObject(file: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(readRegularText(file));
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  } catch (cause) {
    throw new LpqError('LPQ_CONFIG', `${file} is not valid JSON: ${(cause as Error).message}`, { cause });
  }
  throw new LpqError('LPQ_CONFIG', `${file} does not hold an object`);
}
