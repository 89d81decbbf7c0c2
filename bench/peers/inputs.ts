import { copyFileSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { createRuntime } from '../../native/binding.js';
import { loadCalibration } from '../../src/calibrate/text.js';
import { openTokenizer } from '../../src/calibrate/tokenizer.js';
import { textWindows } from '../../src/eval/windows.js';
import { modelShape, withVocabulary } from '../shapes.js';
import { makeSynthetic } from '../synthetic.js';
import { LENGTH, type Model } from './cells.js';

/** What every tool is given of a model. */
export interface Inputs {
  readonly model: string;
  /** JSON: the token ids of the samples, as `lpq quantize --calib --samples --seq-len --seed 0` draws them. */
  readonly samples: string;
  /** The text of perplexity, cut to its length, and JSON: its windows. */
  readonly text?: string;
  readonly windows?: string;
}

/** Files of a model's name. */
const TOKENIZER = ['tokenizer.json', 'tokenizer_config.json'];
const SEED = 0;

/** Makes what is not there yet, in `work`. */
export async function inputsOf(model: Model, work: string, tiny: string): Promise<Inputs> {
  const place = (name: string) => path.join(work, 'inputs', `${model.name}-${name}`);
  mkdirSync(path.join(work, 'inputs'), { recursive: true });
  const dir = model.dir ?? place('model');
  if (model.dir === undefined && !existsSync(path.join(dir, 'tokenizer.json'))) await random(dir, model, tiny);
  const samples = place('samples.json');
  if (!existsSync(samples)) {
    const options = { samples: model.samples, length: model.length, seed: SEED };
    const { sequences } = await loadCalibration(model.calib, await openTokenizer(dir), options);
    write(samples, sequences);
  }
  if (!model.text) return { model: dir, samples };
  const [text, windows] = [place('text.txt'), place('windows.json')];
  if (!existsSync(windows)) {
    // A character that the cut divides is left out.
    const bytes = readFileSync(model.text.file).subarray(0, model.text.bytes);
    writeFileSync(text, new TextDecoder().decode(bytes, { stream: true }));
    write(windows, (await textWindows(dir, text, { ctx: LENGTH, bos: 'never' })).windows);
  }
  return { model: dir, samples, text, windows };
}

const write = (file: string, lists: readonly Int32Array[]) =>
  writeFileSync(file, JSON.stringify(lists.map((ids) => [...ids])));

/** A model of a shape, with random weights and the bundled model's vocabulary. */
async function random(dir: string, { shape: name, blocks }: Model, tiny: string): Promise<void> {
  const shape = withVocabulary(modelShape(name as string), 2048);
  await makeSynthetic(createRuntime(), dir, shape, { blocks, seed: SEED });
  for (const name of TOKENIZER) copyFileSync(path.join(tiny, name), path.join(dir, name));
}
