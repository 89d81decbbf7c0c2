import assert from 'node:assert/strict';
import { existsSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { ENGINES } from '../../../src/engines/index.js';
import { sampled } from '../../sample.js';
import { lpq, model, root, scratch } from '../cli/lpq.js';

const fixture = (name: string) => path.join(root, 'test', 'fixtures', 'architectures', name);

/** A trained Llama; and, of widths that are no multiple of 128, a dense model, a mixture and a multimodal checkpoint. */
const MODELS = {
  trained: model,
  narrow: fixture('llama'),
  mixture: fixture('mixtral'),
  multimodal: fixture('gemma3'),
} as const;
type Model = keyof typeof MODELS;

/** What is refused, and how; every other pair of an engine and a model ends in a verified directory. */
const REFUSED: Readonly<Record<string, Partial<Record<Model, RegExp>>>> = {
  lmdeploy: {
    narrow: /LPQ_GROUP_SIZE .*groups of 128 do not divide the 32 input features/,
    mixture: /LPQ_GROUP_SIZE .*groups of 128/,
    multimodal: /LPQ_GROUP_SIZE .*groups of 128/,
  },
};

/** What is asked for where an engine does not read four bits. */
const WIDTHS: Readonly<Record<string, readonly string[]>> = { 'tensorrt-llm': ['--dtype', 'f8e4m3'] };

const served = ENGINES.filter(({ forms }) => forms.length > 0);
const cases = served.flatMap(({ name }) => Object.keys(MODELS).map((each) => [name, each as Model] as const));

for (const [engine, each] of sampled('engines and models', cases, 7))
  test(`quantize --for ${engine}: ${each}, in one command`, async (t) => {
    const out = path.join(scratch(t), 'out');
    const args = [
      ...(WIDTHS[engine] ?? ['--bits', '4']),
      '--for',
      engine,
      '--untested',
      '--method',
      'rtn',
      '--device',
      'cpu',
      '--no-report',
    ];
    const ran = await lpq(['quantize', MODELS[each], '-o', out, ...args]);
    const refused = REFUSED[engine]?.[each];
    if (refused) {
      assert.equal(ran.code, 2, ran.stderr);
      assert.match(ran.stderr, refused);
      assert.ok(!existsSync(out));
      return;
    }
    assert.equal(ran.code, 0, ran.stderr);
    assert.match(ran.stderr, /verified against the quantized checkpoint; for /);
    for (const name of ['README.md', 'config.json', 'lpq.json']) assert.ok(readdirSync(out).includes(name), name);
  });
