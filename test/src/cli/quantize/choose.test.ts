import assert from 'node:assert/strict';
import { cpSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { ARCHITECTURES } from '../../model/fixtures.js';
import { CALIB, events, lpq, model, scratch } from '../lpq.js';

const tiny = path.join(ARCHITECTURES, 'llama');
const FEW = ['--samples', '4', '--seq-len', '64', '--device', 'cpu'];

/** A fixture, with a tokenizer of its vocabulary: letters alone. */
function readable(t: TestContext, name: string): string {
  const dir = path.join(scratch(t), name);
  cpSync(path.join(ARCHITECTURES, name), dir, { recursive: true });
  const vocab = Object.fromEntries([...'Ġabcdefghijklmnopqrstuvwxyz'].map((letter, i) => [letter, i]));
  const json = {
    ...{ version: '1.0', added_tokens: [], normalizer: null },
    pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true },
    post_processor: null,
    decoder: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true },
    model: { type: 'BPE', vocab, merges: [], unk_token: null, fuse_unk: false, byte_fallback: false },
  };
  writeFileSync(path.join(dir, 'tokenizer.json'), JSON.stringify(json));
  return dir;
}

const recipeOf = (stdout: string) => stdout.replace(/^#.*\n/gm, '').trim();

test('by the loss: the same choice on one thread and on three, and the recipe makes the same bytes', async (t) => {
  const out = (name: string) => path.join(scratch(t), name);
  const choice = [
    '--choose-by',
    'loss',
    '--choose-from',
    '2:64, 3,mxfp4,4:channel',
    '--target-bpw',
    '3.2',
    ...FEW,
    ...CALIB,
  ];
  const chosen = out('chosen');
  const ran = await lpq(['quantize', model, '-o', chosen, ...choice, '--threads', '1', '--no-eval', '--json']);
  assert.equal(ran.code, 0, ran.stdout);
  const told = events(ran).find(({ event }) => event === 'target') as unknown as {
    chosenBy: string;
    bitsPerWeight: number;
    units: { dtype?: string; bits?: number; groupSize: number }[];
  };
  assert.equal(told.chosenBy, 'loss');
  assert.ok(told.bitsPerWeight <= 3.2 && told.bitsPerWeight > 3.1, String(told.bitsPerWeight));
  assert.ok(new Set(told.units.map(({ bits, dtype }) => bits ?? dtype)).size > 1);
  const printed = await lpq([
    'quantize',
    model,
    '-o',
    out('x'),
    ...choice,
    '--threads',
    '3',
    '--print-recipe',
    '--quiet',
  ]);
  const recipe = out('recipe.yaml');
  writeFileSync(recipe, printed.stdout);
  const again = out('again');
  const repeated = await lpq([
    'quantize',
    model,
    '-o',
    again,
    '--recipe',
    recipe,
    '--device',
    'cpu',
    '--no-eval',
    '--quiet',
  ]);
  assert.equal(repeated.code, 0, repeated.stderr);
  for (const name of ['model.safetensors', 'lpq.json'])
    assert.ok(readFileSync(path.join(again, name)).equals(readFileSync(path.join(chosen, name))), name);
});

test('--choose-by: errors by default; gradients are refused where an operation has none, which is named', async (t) => {
  const out = path.join(scratch(t), 'out');
  const letters = path.join(scratch(t), 'letters.txt');
  writeFileSync(letters, 'the quick brown fox jumps over the lazy dog and goes home '.repeat(40));
  const gemma = readable(t, 'gemma3n_text');
  const asked = ['quantize', gemma, '-o', out, '--target-bpw', '5', '--group-size', '16', ...FEW, '--calib', letters];
  const left = await lpq([...asked, '--print-recipe']);
  assert.equal(left.code, 0, left.stderr);
  const error = await lpq([...asked, '--choose-by', 'error', '--print-recipe']);
  assert.equal(recipeOf(error.stdout), recipeOf(left.stdout));
  const refused = await lpq([...asked, '--choose-by', 'loss', '--quiet']);
  assert.equal(refused.code, 2);
  assert.match(refused.stderr, /--choose-by loss cannot measure .*gemma3n_text: block 0 has alternating updates/);
});

test('options of a choice that contradict each other are refused', async (t) => {
  const out = path.join(scratch(t), 'out');
  const target = ['--target-bpw', '3', ...FEW];
  const refused: [readonly string[], RegExp][] = [
    [['--bits', '4', '--choose-by', 'loss'], /--choose-by has no effect without --target-bpw or --target-size/],
    [['--bits', '4', '--choose-from', '2,3'], /--choose-from has no effect without --target-bpw or --target-size/],
    [[...target, '--choose-by', 'luck'], /--choose-by does not take 'luck'[\s\S]*loss or error/],
    [[...target, '--choose-from', '3'], /--choose-from names one type/],
    [[...target, '--choose-from', '3,3:32'], /--choose-from names i3 g32 twice/],
    [[...target, '--choose-from', '3,4:'], /--choose-from does not take '4:'/],
    [[...target, '--choose-from', '3,9'], /--bits 9 is not a whole number from 1 to 8/],
    [[...target, '--choose-from', '3,nothing'], /nothing/],
    [[...target, '--choose-from', '3,mxfp4:64'], /mxfp4 means groups of 32/],
    [[...target, '--choose-from', '3,4:48'], /groups of 48 do not divide/],
    [[...target, '--choose-from', '3,mxfp4', '--asym'], /--asym does not go with mxfp4/],
  ];
  for (const [args, says] of refused) {
    const ran = await lpq(['quantize', tiny, '-o', out, '--group-size', '32', ...args, '--quiet']);
    assert.equal(ran.code, 2, `${args.join(' ')}: ${ran.stderr}`);
    assert.match(ran.stderr, says);
  }
});
