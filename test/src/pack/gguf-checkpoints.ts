import assert from 'node:assert/strict';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { Checkpoint } from '../../../formats/safetensors/checkpoint.js';
import { writeSafetensors } from '../../../formats/safetensors/write.js';
import { createRuntime, typed } from '../../../native/binding.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { lpq } from '../cli/lpq.js';
import { writeWidened } from '../model/fixtures.js';
import { Container, type Forgery, forged } from '../verify/gguf-forge.js';
import { BYTES } from './llama-cpp.js';

/** Checkpoints of random weights, packed as GGUF: model NAME of a folder is NAME, quantized NAME-q, packed NAME-g. */

export type Stored = Parameters<typeof writeSafetensors>[1][number];
type Json = Record<string, unknown>;

const runtime = createRuntime(2);

export const configOf = (model: string): Json =>
  JSON.parse(readFileSync(path.join(model, 'config.json'), 'utf8')) as Json;

/** A widened fixture with a tokenizer. */
export async function withTokens(fixture: string, model: string, config: Json): Promise<void> {
  await writeWidened(fixture, model, config);
  writeFileSync(path.join(model, 'tokenizer.json'), JSON.stringify(BYTES));
}

/** A checkpoint of bf16 with other tensors and another config.json. */
export async function rewritten(
  from: string,
  to: string,
  tensors: (all: readonly Stored[]) => Stored[],
  config: object,
): Promise<void> {
  mkdirSync(to);
  const source = Checkpoint.open(from);
  const all = [...source.names()].map((name): Stored => {
    const { dtype, shape } = source.spec(name);
    return { name, dtype, shape: [...shape], data: typed<Uint16Array>(source.tensor(name)).slice() };
  });
  await writeSafetensors(path.join(to, 'model.safetensors'), tensors(all));
  source.close();
  writeFileSync(path.join(to, 'config.json'), JSON.stringify(config));
  writeFileSync(path.join(to, 'tokenizer.json'), JSON.stringify(BYTES));
}

/** Quantizes a model and packs it; what `pack` said. */
export async function packedGguf(model: string): Promise<string> {
  const how = ['--method', 'rtn', '--bits', '8', '--group-size', '32', '--no-report'];
  const first = await lpq(['quantize', model, '-o', `${model}-q`, ...how]);
  assert.equal(first.code, 0, first.stderr);
  const { code, stderr } = await lpq(['pack', `${model}-q`, '--target', 'gguf', '-o', `${model}-g`]);
  assert.equal(code, 0, stderr);
  return stderr;
}

export const containerOf = (model: string): Container =>
  new Container(readFileSync(path.join(`${model}-g`, 'model.gguf')));

/** What `verify` says of it, with a forgery in it and every hash redone. */
export async function failuresOf(model: string, forgery: Forgery = {}): Promise<string[]> {
  const found: string[] = [];
  await forged(`${model}-g`, forgery, async (dir) => {
    for (const against of [undefined, `${model}-q`]) {
      const { failures } = await verifyArtifact({ dir, against, runtime });
      if (against !== undefined || forgery.gguf === undefined) found.push(...failures.map(({ message }) => message));
    }
  });
  return found;
}

/** Two files say the same, but what they are called, and the order of their tensors. */
export function sameFile(model: string, other: string): void {
  const [a, b] = [containerOf(model), containerOf(other)];
  const tensors = (file: Container) => file.tensors.toSorted((x, y) => (x.name < y.name ? -1 : 1));
  assert.deepEqual(tensors(b), tensors(a));
  const keys = (file: Container) => file.keys.filter(({ key }) => key !== 'general.name');
  assert.deepEqual(keys(b), keys(a));
}
