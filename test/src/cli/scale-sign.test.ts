import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { typed } from '../../../native/binding.js';
import { CALIB, lpq, model, scratch } from './lpq.js';

/** Signs of f16 scales: how many are below zero. */
function negatives(dir: string): number {
  const checkpoint = CanonicalCheckpoint.open(dir);
  let count = 0;
  for (const name of checkpoint.moduleNames()) {
    const scales = checkpoint.require(name, 'scales');
    for (const bits of typed<Uint16Array>(scales)) if (bits & 0x8000) count++;
    scales.dispose();
  }
  checkpoint.close();
  return count;
}

test('--scale-sign positive: no scale below zero in any symmetric grid; by default some are', async (t) => {
  const dir = scratch(t);
  const quantize = async (name: string, ...args: string[]) => {
    const out = path.join(dir, name);
    const ran = await lpq(['quantize', model, '-o', out, '--no-report', '--quiet', ...args]);
    assert.equal(ran.code, 0, ran.stderr);
    return negatives(out);
  };
  const few = ['--samples', '4', '--seq-len', '64', ...CALIB];
  assert.ok((await quantize('either', '--bits', '4', ...few)) > 0);
  assert.equal(await quantize('w4', '--bits', '4', ...few, '--scale-sign', 'positive'), 0);
  assert.equal(await quantize('w3', '--bits', '3', ...few, '--scale-sign', 'positive', '--sparsity', '2:4'), 0);
  assert.equal(await quantize('rtn', '--bits', '4', '--method', 'rtn'), 0, 'rounding has none');
});

test('--scale-sign is refused where it has no effect, and for other words', async (t) => {
  const out = path.join(scratch(t), 'never');
  for (const [args, says] of [
    [['--bits', '4', '--method', 'rtn', '--scale-sign', 'positive'], /--scale-sign.*rtn/],
    [['--bits', '4', '--scale-sign', 'negative'], /--scale-sign does not take 'negative'/],
  ] as const) {
    const ran = await lpq(['quantize', model, '-o', out, ...args]);
    assert.equal(ran.code, 2);
    assert.match(ran.stderr, says);
  }
});
