import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { deviceFor } from '../../../src/cli/quantize/method.js';
import type { FullSettings } from '../../../src/cli/quantize/settings.js';
import { TUNE_DEFAULTS, tuneOptions } from '../../../src/tune/options.js';
import { scratch } from '../../formats/scratch.js';

const root = fileURLToPath(new URL('../../../../', import.meta.url));

test('training computes on the device that is asked for, whatever the method', () => {
  const on = (method: string, device: string) =>
    deviceFor({ method, tune: 5 } as unknown as FullSettings, { device } as Parameters<typeof deviceFor>[1]).device;
  for (const method of ['gptq', 'rtn', 'fmpq'])
    assert.deepEqual([on(method, 'auto'), on(method, 'cuda'), on(method, 'cpu')], ['auto', 'cuda', 'cpu']);
});

test('no steps, no training', () => {
  assert.equal(tuneOptions({ tune: 0 }), undefined);
  assert.deepEqual(tuneOptions({ tune: 7, seed: 3 }), { ...TUNE_DEFAULTS, steps: 7, seed: 3 });
});

test('--tune alone takes 200 steps; the time of training is foretold; rounding to the nearest reads a text if it is trained', () => {
  const model = path.join(root, 'share', 'tiny-llama');
  const run = (...options: string[]) =>
    spawnSync(
      process.execPath,
      ['bin/lpq.js', 'quantize', model, '-o', path.join(scratch(), 'o'), '--bits', '4', ...options],
      {
        cwd: root,
        encoding: 'utf8',
      },
    );
  assert.match(run('--tune', '--print-recipe').stdout, /^tune: 200$/m);
  const text = ['--calib', path.join(root, 'test', 'fixtures', 'text.txt'), '--samples', '8', '--seq-len', '64'];
  const told = run('--dry-run', '--timed', ...text, '--tune', '20', '--tune-scales', '20').stdout;
  assert.match(told, /^.*about .* of memory, about [^,]*, block \d took/m);
  const calibrated = ['--method', 'rtn', '--calib', 'x.txt', '--print-recipe'];
  assert.match(run(...calibrated).stderr, /--calib has no effect with --method rtn/);
  assert.match(run(...calibrated, '--tune', '5').stdout, /^tune: 5$/m);
  assert.match(run('--tune', '-1').stderr, /--tune does not take '-1'/);
});
