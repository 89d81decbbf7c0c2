import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { LpqError } from '../core/error.js';
import { printed } from '../core/printed.js';
import { readObject, readText } from './model-file.js';

/** What a model directory says about how conversations become text. */
export interface TemplateFiles {
  /** Where the template lies, for messages. */
  readonly place: string;
  /** By name; `default` is the one for conversations without tools, if there are several. */
  readonly templates: ReadonlyMap<string, string>;
  /** bos_token, eos_token, ...: templates print them by these names. */
  readonly specialTokens: Readonly<Record<string, string>>;
  /** Of the templates and the special tokens: what a rendering depends on besides the conversation. */
  readonly sha256: string;
}

const TOKENIZER_CONFIG = 'tokenizer_config.json';
/** Where a template may lie, in the order in which transformers looks. */
const PLACES = ['chat_template.jinja', 'chat_template.json', TOKENIZER_CONFIG] as const;

/**
 * The chat template of a model directory: chat_template.jinja, chat_template.json, or `chat_template` of
 * tokenizer_config.json, a string or a list of {name, template}. Throws LPQ_CONFIG where there is none, or a file is
 * malformed.
 */
export function findChatTemplate(dir: string): TemplateFiles {
  const config = readObject(path.join(dir, TOKENIZER_CONFIG)) ?? {};
  const specialTokens = specialTokensOf({
    ...(readObject(path.join(dir, 'special_tokens_map.json')) ?? {}),
    ...config,
  });
  for (const name of PLACES) {
    const file = path.join(dir, name);
    const templates = name.endsWith('.jinja')
      ? readJinja(file)
      : named(file, (name === TOKENIZER_CONFIG ? config : readObject(file))?.chat_template);
    if (!templates) continue;
    const sha256 = createHash('sha256')
      .update(JSON.stringify([[...templates].sort(), Object.entries(specialTokens).sort()]))
      .digest('hex');
    return { place: file, templates, specialTokens, sha256 };
  }
  throw new LpqError('LPQ_CONFIG', `${dir} has no chat template, which conversations need`, {
    got: PLACES.filter((name) => existsSync(path.join(dir, name))).join(', ') || 'no file with a template',
    expected: `chat_template.jinja, or chat_template in ${TOKENIZER_CONFIG}`,
    hint: 'Copy it from the instruct model, or give {"text": "..."} lines with the conversations as the model sees them.',
  });
}

function readJinja(file: string): ReadonlyMap<string, string> | undefined {
  return existsSync(file) ? new Map([['default', readText(file)]]) : undefined;
}

function named(file: string, value: unknown): ReadonlyMap<string, string> | undefined {
  if (value === undefined || value === null) return undefined;
  if (typeof value === 'string') return new Map([['default', value]]);
  const list = Array.isArray(value) ? (value as { name?: unknown; template?: unknown }[]) : [];
  const templates = new Map(list.map((entry) => [entry?.name, entry?.template] as [string, string]));
  const strings = [...templates].flat().every((text) => typeof text === 'string');
  if (strings && templates.size > 0 && templates.size === list.length) return templates;
  throw new LpqError('LPQ_CONFIG', `chat_template of ${file} is malformed`, {
    got: printed(value).slice(0, 60),
    expected: 'a string, or a list of {"name": "...", "template": "..."}',
  });
}

/** Tokens are strings, or objects with their text under `content`. */
function specialTokensOf(config: Readonly<Record<string, unknown>>): Record<string, string> {
  const tokens: Record<string, string> = {};
  for (const [name, value] of Object.entries(config)) {
    if (!/^[a-z]+_token$/.test(name)) continue;
    const text = typeof value === 'string' ? value : (value as { content?: unknown } | null)?.content;
    if (typeof text === 'string') tokens[name] = text;
  }
  return tokens;
}
