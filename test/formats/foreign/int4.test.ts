import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import {
  isSource,
  openQuantized,
  openSource,
  SourceCheckpoint,
  unpublished,
} from '../../../formats/canonical/source.js';
import { typed } from '../../../native/binding.js';
import { designed, scratch } from '../scratch.js';
import { type Encoded, packedTensors, randomCodes, weightOf } from './encode.js';
import { writeModel } from './mini.js';
import { int4Settings } from './published.js';

/** compressed-tensors INT4 as models are published in it: which settings make a source, and what its weights are. */

const root = scratch();
let count = 0;

function write(tensors: readonly Encoded[], settings: object): Promise<string> {
  return writeModel(path.join(root, String(count++)), { tensors, settings });
}

const form = { n: 24, k: 96, bits: 4, group: 32, symmetric: true };

test('each weight is its code less 8, times the scale of its group', async () => {
  for (const seed of [1, 2, 3]) {
    const codes = randomCodes({ ...form, seed });
    const dir = await write(packedTensors('m', codes, { symmetric: true }), int4Settings());
    assert.ok(isSource(dir));
    const source = openSource(dir);
    assert.ok(source instanceof SourceCheckpoint);
    assert.deepEqual([...source.names()], ['m.weight']);
    assert.deepEqual([source.weights.dtype('m.weight'), source.shape('m.weight')], ['F32', [24, 96]]);
    assert.deepEqual(typed<Float32Array>(await source.tensor('m.weight')), weightOf(codes));
    source.close();
  }
});

const OTHERS: readonly (readonly [what: string, more: object, why: RegExp])[] = [
  ['8 bits', { num_bits: 8 }, /group_0: 8-bit int/],
  ['zero points', { symmetric: false }, /symmetric false/],
  ['groups of 128', { group_size: 128 }, /group of 128/],
  ['a scale a row', { strategy: 'channel', group_size: null }, /channel of rows/],
  ['act-order', { actorder: 'group' }, /actorder group/],
  ['floats', { type: 'float' }, /4-bit float/],
  ['bits that are none', { num_bits: 'four' }, /num_bits' cannot be used/],
];

for (const [what, more, why] of OTHERS)
  test(`settings with ${what} are no published model's`, async () => {
    const dir = await write(packedTensors('m', randomCodes(form), { symmetric: true }), int4Settings(more));
    assert.equal(isSource(dir), false);
    assert.match(String(unpublished(dir)), why);
  });

test('codes of other bits than stated, and a lost scale, are named', async () => {
  const wide = packedTensors('m', randomCodes({ ...form, bits: 8 }), { symmetric: true });
  const dir = await write(wide, int4Settings());
  assert.throws(
    () => openSource(dir),
    designed('LPQ_FOREIGN', /m\.weight_packed.*\[24, 24\].*in 4 bits.*correct num_bits/),
  );
  await assert.rejects(openQuantized(dir), designed('LPQ_FOREIGN', /m\.weight_packed/));
  const whole = packedTensors('m', randomCodes(form), { symmetric: true });
  const lost = await write(
    whole.filter(({ name }) => name !== 'm.weight_scale'),
    int4Settings(),
  );
  assert.throws(() => openSource(lost), designed('LPQ_FOREIGN', /lacks the tensor 'm\.weight_scale'/));
  const twice: Encoded = { name: 'm.weight', dtype: 'F32', shape: [24, 96], data: new Float32Array(24 * 96) };
  const both = await write([...whole, twice], int4Settings());
  assert.throws(() => openSource(both), designed('LPQ_FOREIGN', /'m\.weight' twice, in low bits and plain/));
});
