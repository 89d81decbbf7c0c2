import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { cpSync, existsSync, readFileSync, truncateSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { Checkpoint } from '../../formats/safetensors/checkpoint.js';
import { writeSafetensors } from '../../formats/safetensors/write.js';
import { typed } from '../../native/binding.js';
import { lpq, model as tinyLlama } from '../src/cli/lpq.js';
import { ARCHITECTURES, writeWidened } from '../src/model/fixtures.js';
import { BYTES, inFloats } from '../src/pack/llama-cpp.js';
import type { EditedModel, Format, RandomModel } from './cells.js';

/** The directories that engines are given, by lpq's own commands. */

/** lpq ARGS, which has to succeed. */
export async function run(...args: string[]): Promise<void> {
  const ran = await lpq([...args, '--quiet']);
  assert.equal(ran.code, 0, `lpq ${args.join(' ')}\n${ran.stderr}`);
}

type Stored = Parameters<typeof writeSafetensors>[1][number];

/** bf16 of (i mod 7 - 3) / 8, exact: on q, k, v and o. Logits without them are far off. */
function biasOf({ name, shape }: Stored): Stored[] {
  if (!/self_attn\.[qkvo]_proj\.weight$/.test(name)) return [];
  const data = Uint16Array.from({ length: shape[0]! }, (_, i) => {
    const bits = new Uint32Array(Float32Array.of(((i % 7) - 3) / 8).buffer)[0]!;
    return bits >>> 16;
  });
  return [{ name: name.replace(/weight$/, 'bias'), dtype: 'BF16', shape: [data.length], data }];
}

/** The embedding's numbers as a head of its own. */
const headOf = (stored: Stored): Stored[] =>
  stored.name === 'model.embed_tokens.weight' ? [{ ...stored, name: 'lm_head.weight' }] : [];

const EDITS: Readonly<Record<EditedModel, { beside: (stored: Stored) => Stored[]; key: string; value: boolean }>> = {
  'tiny-llama with biases': { beside: biasOf, key: 'attention_bias', value: true },
  'tiny-llama with a head': { beside: headOf, key: 'tie_word_embeddings', value: false },
};

/** The bundled model with further tensors and another value of a key of config.json. */
async function edited(model: EditedModel, dir: string): Promise<string> {
  const made = path.join(dir, model.replaceAll(' ', '-'));
  if (existsSync(made)) return made;
  cpSync(tinyLlama, made, { recursive: true, filter: (file) => !file.endsWith('.safetensors') });
  const { beside, key, value } = EDITS[model];
  const source = Checkpoint.open(tinyLlama);
  const tensors = [...source.names()].flatMap((name): Stored[] => {
    const { dtype, shape } = source.spec(name);
    const stored = { name, dtype, shape: [...shape], data: typed<Uint16Array>(source.tensor(name)).slice() };
    return [stored, ...beside(stored)];
  });
  await writeSafetensors(path.join(made, 'model.safetensors'), tensors);
  source.close();
  const config = path.join(made, 'config.json');
  const text = readFileSync(config, 'utf8');
  assert.ok(text.includes(`"${key}": ${!value}`), config);
  writeFileSync(config, text.replace(`"${key}": ${!value}`, `"${key}": ${value}`));
  return made;
}

/** Of settings, which may be too long for a name. */
const digest = (settings: object): string =>
  createHash('sha256').update(JSON.stringify(settings)).digest('hex').slice(0, 12);

/** llama.cpp wants certain tokens of a model that is called phi3. */
async function random(model: RandomModel, config: object, dir: string): Promise<string> {
  const made = path.join(dir, `${model} ${digest(config)}`.replaceAll(' ', '-').replace('phi3', 'phi-three'));
  if (existsSync(made)) return made;
  await writeWidened(model.slice('random '.length), made, {
    vocab_size: 320,
    text_config: { vocab_size: 320, ...config },
    ...config,
  });
  writeFileSync(path.join(made, 'tokenizer.json'), JSON.stringify(BYTES));
  return made;
}

function fixture(name: string, dir: string): string {
  const made = path.join(dir, `fixture-${name}`);
  if (!existsSync(made))
    cpSync(path.join(ARCHITECTURES, name), made, {
      recursive: true,
      filter: (file) => !file.endsWith('golden.safetensors'),
    });
  return made;
}

/** The checkpoint that a format starts from; undefined where this machine has none. */
export async function sourceOf({ model, config = {} }: Format, dir: string): Promise<string | undefined> {
  if (model === undefined) return tinyLlama;
  if (model === 'tiny-qwen3-moe') return sharedModel(model);
  if (model.startsWith('fixture ')) return fixture(model.slice('fixture '.length), dir);
  return model.startsWith('random ') ? random(model as RandomModel, config, dir) : edited(model as EditedModel, dir);
}

function sharedModel(name: string): string | undefined {
  const shared = process.env.LPQ_SHARED && path.join(process.env.LPQ_SHARED, 'models', name);
  return shared && existsSync(shared) ? shared : undefined;
}

function damage(packed: string, how: NonNullable<Format['damage']>): void {
  const weights = path.join(packed, 'model.safetensors');
  const bytes = readFileSync(weights);
  if (how === 'cut') truncateSync(weights, bytes.length - 100);
  if (how === 'changed') {
    bytes[bytes.length - 1]! ^= 1;
    writeFileSync(weights, bytes);
  }
  if (how !== 'type') return;
  const manifest = path.join(packed, 'lpq.json');
  writeFileSync(manifest, readFileSync(manifest, 'utf8').replaceAll('"type": "i3"', '"type": "q3"'));
}

/** The directory of a format, made once; undefined where this machine lacks the model. */
export async function directoryOf(format: Format, dir: string): Promise<string | undefined> {
  const source = await sourceOf(format, dir);
  if (!source) return undefined;
  const named = (name: string) => path.join(dir, name.replace(/[^\w]+/g, '-'));
  const rules = format.rules ? JSON.stringify({ rules: format.rules }) : '';
  const settings = format.config ? digest(format.config) : '';
  const quantized = named(`${format.model ?? 'tiny'} ${format.options.join(' ')} ${rules}${settings}`);
  const recipe = rules ? ['--recipe', `${quantized}.json`] : [];
  if (rules) writeFileSync(`${quantized}.json`, rules);
  if (!existsSync(quantized))
    await run('quantize', source, '-o', quantized, '--no-report', ...format.options, ...recipe);
  const packed = named(format.name);
  if (existsSync(packed)) return packed;
  const searched = format.target.startsWith('gguf-') ? ['--source', source] : [];
  await run('pack', quantized, '--target', format.target, '-o', packed, ...searched, ...(format.packing ?? []));
  if (format.floats) await inFloats(path.join(packed, 'model.gguf'), path.join(packed, 'floats.gguf'));
  if (format.damage) damage(packed, format.damage);
  return packed;
}
