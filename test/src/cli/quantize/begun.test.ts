import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { CanonicalCheckpoint } from '../../../../formats/canonical/read.js';
import { scratch } from '../../../formats/scratch.js';

const root = fileURLToPath(new URL('../../../../../', import.meta.url));
const model = path.join(root, 'share', 'tiny-llama');
const TEXT = ['--calib', path.join(root, 'test', 'fixtures', 'text.txt'), '--samples', '4', '--seq-len', '64'];
const place = scratch();
const out = (name: string) => path.join(place, name);

function quantize(name: string, ...options: string[]) {
  const made = spawnSync(
    process.execPath,
    ['bin/lpq.js', 'quantize', model, '-o', out(name), '--no-eval', '--no-report', ...TEXT, ...options],
    { cwd: root, encoding: 'utf8' },
  );
  return { ...made, output: out(name) };
}

const W3 = ['--bits', '3', '--group-size', '64'];

test('training goes on from a checkpoint: with its codes where no step is better, and as after the method in the first block', () => {
  const [plain, whole] = [quantize('gptq', ...W3), quantize('tuned', ...W3, '--tune', '3')];
  assert.equal(plain.status, 0, plain.stderr);
  assert.equal(whole.status, 0, whole.stderr);
  const from = quantize('from', ...W3, '--tune', '3', '--from', out('gptq'));
  assert.equal(from.status, 0, from.stderr);
  const [a, b] = [CanonicalCheckpoint.open(whole.output), CanonicalCheckpoint.open(from.output)];
  const first = a.moduleNames().filter((name) => name.includes('layers.0.'));
  assert.equal(first.length, 7);
  for (const name of first)
    for (const part of ['codes', 'scales'] as const)
      assert.deepEqual(b.part(name, part)?.bytes(), a.part(name, part)?.bytes(), `${name} ${part}`);
  for (const checkpoint of [a, b]) checkpoint.close();
  const { provenance } = JSON.parse(readFileSync(path.join(from.output, 'lpq.json'), 'utf8'));
  const sha256 = createHash('sha256')
    .update(readFileSync(path.join(out('gptq'), 'lpq.json')))
    .digest('hex');
  assert.equal(provenance.options.from, sha256);
  assert.equal(provenance.options.tune, 3);

  const scales = quantize('scales', ...W3, '--tune-scales', '2', '--from', out('gptq'));
  assert.equal(scales.status, 0, scales.stderr);
  const [before, after] = [CanonicalCheckpoint.open(plain.output), CanonicalCheckpoint.open(scales.output)];
  for (const name of before.moduleNames())
    assert.deepEqual(after.part(name, 'codes')?.bytes(), before.part(name, 'codes')?.bytes(), name);
  for (const checkpoint of [before, after]) checkpoint.close();
});

test('a checkpoint that training cannot begin with is refused before any work', () => {
  const made = spawnSync(
    process.execPath,
    ['bin/lpq.js', 'quantize', model, '-o', out('rtn'), '--no-eval', '--no-report', '--method', 'rtn', ...W3],
    { cwd: root, encoding: 'utf8' },
  );
  assert.equal(made.status, 0, made.stderr);
  const refused = (...options: string[]): string => {
    const { status, stderr } = quantize('refused', ...options);
    assert.equal(status, 2, stderr);
    return stderr;
  };
  const from = ['--from', out('rtn')];
  assert.match(refused(...W3, ...from), /--from has no effect alone/);
  const other = refused('--bits', '4', '--group-size', '64', '--tune', '2', ...from);
  assert.match(other, /LPQ_REDO {2}model\.layers\.0\.self_attn\.q_proj has another form in/);
  assert.match(other, /i4 g64[\s\S]*i3 g64/);
  assert.match(refused(...W3, '--asym', '--tune', '2', ...from), /has another form in/);
  assert.match(refused('--target-bpw', '3.5', '--tune', '2', ...from), /--from does not go with --target-bpw/);
  assert.equal(quantize('refused', ...W3, '--tune', '2', '--from', out('nowhere')).status, 4);
});
