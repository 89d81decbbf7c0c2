import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { activationsOf } from '../../../../src/cli/options/activations.js';
import { lpq, model, scratch } from '../lpq.js';

test('--activations takes f16 and bf16 and nothing else, of generate and eval', async () => {
  for (const args of [
    ['generate', model, '--prompt', 'Once'],
    ['eval', model, '--text', 'absent.txt'],
  ]) {
    const { code, stderr } = await lpq([...args, '--activations', 'f32', '--device', 'cpu']);
    assert.equal(code, 2);
    assert.match(stderr, /LPQ_USAGE {2}--activations does not take 'f32'\n {2}got {7}f32\n {2}expected {2}f16 or bf16/);
  }
});

test('f16 where all scales are, bf16 elsewhere; what was asked for goes first', (t) => {
  const dir = scratch(t);
  const manifest = (text: string) => writeFileSync(path.join(dir, 'lpq.json'), text);
  const scales = (...types: string[]) =>
    manifest(
      JSON.stringify({
        format: 'lpq-artifact',
        modules: Object.fromEntries(types.map((dtype, i) => [`m${i}`, { scales: { dtype } }])),
      }),
    );
  assert.equal(activationsOf(dir, undefined), 'bf16');
  scales('f16', 'f16');
  assert.equal(activationsOf(dir, undefined), 'f16');
  assert.equal(activationsOf(dir, 'bf16'), 'bf16');
  scales('f16', 'bf16');
  assert.equal(activationsOf(dir, undefined), 'bf16');
  assert.equal(activationsOf(dir, 'f16'), 'f16');
  // What has no modules, and what cannot be read, is for others to refuse.
  for (const text of ['{"modules": {}}', '{}', '[]', 'null', '{"modules": {"a": null}}', '{"modules"', '']) {
    manifest(text);
    assert.equal(activationsOf(dir, undefined), 'bf16', text);
  }
});
