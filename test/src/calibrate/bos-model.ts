import { cpSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { shareDirectory } from '../../../src/calibrate/bundled.js';

export const TINY = path.join(shareDirectory(), 'tiny-llama');
/** `<s>` of the bundled model, whose tokenizer puts nothing before a text. */
export const BOS = 1;

/** A post-processor that puts these tokens of the bundled model before a text, and others behind it. */
export function template(before: readonly string[], behind: readonly string[] = []): object {
  const ids: Readonly<Record<string, number>> = { '<pad>': 0, '<s>': 1, '</s>': 2 };
  const piece = (id: string) => ({ SpecialToken: { id, type_id: 0 } });
  const single = [...before.map(piece), { Sequence: { id: 'A', type_id: 0 } }, ...behind.map(piece)];
  return {
    type: 'TemplateProcessing',
    single,
    pair: [...single, { Sequence: { id: 'B', type_id: 1 } }],
    special_tokens: Object.fromEntries(
      [...before, ...behind].map((token) => [token, { id: token, ids: [ids[token]], tokens: [token] }]),
    ),
  };
}

export interface Changes {
  readonly postProcessor?: unknown;
  /** Over those of tokenizer_config.json. */
  readonly settings?: object;
  readonly config?: object;
}

/** The bundled model with another post-processor, by default one that puts <s> before a text. */
export function bosModel(dir: string, changes: Changes = {}): string {
  const { postProcessor = template(['<s>']), settings = {}, config = {} } = changes;
  mkdirSync(dir, { recursive: true });
  const change = (name: string, over: object) =>
    writeFileSync(
      path.join(dir, name),
      JSON.stringify({ ...JSON.parse(readFileSync(path.join(TINY, name), 'utf8')), ...over }),
    );
  change('tokenizer.json', { post_processor: postProcessor });
  change('tokenizer_config.json', settings);
  change('config.json', config);
  cpSync(path.join(TINY, 'model.safetensors'), path.join(dir, 'model.safetensors'));
  return dir;
}
