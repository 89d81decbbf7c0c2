import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { createRuntime } from '../../../native/binding.js';
import { PACK_TARGETS } from '../../../src/pack/targets/index.js';
import { scratch } from '../../formats/scratch.js';
import { mutateArtifact } from '../../mutation/artifact/mutate.js';
import { CASES, type Case, caseName } from '../../mutation/cases.js';
import { packedCase } from '../../mutation/packed.js';
import { CONFIG_MUTANTS } from '../../mutation/packer/configs.js';
import { ROOT, replaced } from '../../mutation/packer/copy.js';
import { GGUF_MUTANTS } from '../../mutation/packer/gguf.js';
import { LAYOUT_MUTANTS } from '../../mutation/packer/layouts.js';
import { NATIVE_MUTANTS } from '../../mutation/packer/native.js';
import { Shelf } from '../../mutation/quantized.js';

// A sample of test/mutation: the whole of it takes minutes.

const runtime = createRuntime(2);
const dir = scratch();
const shelf = new Shelf(dir, runtime);
const targets = PACK_TARGETS.map(({ name }) => name);

/** One case of each target, and all forms of compressed-tensors. */
const SAMPLE: readonly Case[] = CASES.filter(
  ({ target }, i) => target === 'compressed-tensors' || CASES.findIndex((each) => each.target === target) === i,
);

test('the sample has an artifact of every target', () => {
  assert.deepEqual(new Set(SAMPLE.map(({ target }) => target)), new Set(targets));
});

for (const [seed, each] of SAMPLE.entries())
  test(`${caseName(each)}: a changed value, tensor or file is reported with every hash and the seal redone`, async () => {
    const { packed, quantized } = await packedCase(shelf, each, runtime);
    const work = path.join(dir, 'work', String(seed));
    const trials = await mutateArtifact({ packed, quantized, work, runtime, count: 6, seed, targets });
    assert.equal(trials.length, 6);
    assert.deepEqual(
      trials.filter(({ outcome }) => outcome === 'survived' || outcome === 'crashed'),
      [],
    );
  });

test('every fault of test/mutation has its place in the packer', () => {
  for (const { file, find, replace } of [...LAYOUT_MUTANTS, ...CONFIG_MUTANTS, ...GGUF_MUTANTS]) {
    const text = readFileSync(path.join(ROOT, 'dist', `${file}.js`), 'utf8');
    assert.notEqual(replaced(file, text, find, replace), text);
  }
  for (const { file, find, replace } of NATIVE_MUTANTS) {
    const text = readFileSync(path.join(ROOT, file), 'utf8');
    assert.notEqual(replaced(file, text, find, replace), text);
  }
});
