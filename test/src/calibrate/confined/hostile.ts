import { copyFileSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { shareDirectory } from '../../../../src/calibrate/bundled.js';

const MODEL = path.join(shareDirectory(), 'tiny-llama');

/** Takes time that doubles with every letter: no text of 60 of them and a full stop is ever through. */
export const CATASTROPHE = '(a+)+$';
export const BAIT = `${'a'.repeat(60)}. `;

/** The bundled model in `dir`, with a tokenizer that `change` was let at. */
export function modelWith(dir: string, change: (json: Record<string, unknown>) => void): string {
  mkdirSync(dir, { recursive: true });
  for (const name of ['config.json', 'generation_config.json', 'tokenizer_config.json'])
    copyFileSync(path.join(MODEL, name), path.join(dir, name));
  symlinkSync(path.join(MODEL, 'model.safetensors'), path.join(dir, 'model.safetensors'));
  const json = JSON.parse(readFileSync(path.join(MODEL, 'tokenizer.json'), 'utf8'));
  change(json);
  writeFileSync(path.join(dir, 'tokenizer.json'), JSON.stringify(json));
  return dir;
}

/** The same with an expression that splits text for ever. */
export function catastrophic(dir: string): string {
  return modelWith(dir, (json) => {
    json.pre_tokenizer = {
      type: 'Sequence',
      pretokenizers: [
        { type: 'Split', pattern: { Regex: CATASTROPHE }, behavior: 'Isolated', invert: false },
        { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true },
      ],
    };
  });
}
