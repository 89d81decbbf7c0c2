import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { lpq, model, scratch } from '../cli/lpq.js';

test('what a target will not take is refused before anything is quantized, with what would help', async (t) => {
  const dir = scratch(t);
  const cases: [string, string[], RegExp][] = [
    [
      'compressed-tensors',
      ['--dtype', 'f8e4m3', '--group-size', '64'],
      /scale per row or per square block.*--group-size channel/s,
    ],
    ['compressed-tensors', ['--dtype', 'f8e5m2'], /f8e5m2/],
    ['compressed-tensors', ['--dtype', 'mxfp6'], /f6e2m3/],
    ['compressed-tensors-w8a8', ['--bits', '8'], /one scale per row.*--group-size channel/s],
    ['compressed-tensors-w8a8', ['--bits', '4'], /4 bits and W8A8 has 8/],
    ['compressed-tensors', ['--bits', '1'], /zero point 0.5 is not a 1-bit integer.*--asym/s],
    ['gptq', ['--bits', '5'], /LPQ_TARGET/],
    ['gptq', ['--dtype', 'mxfp4'], /f4e2m1 codes, not integers/],
    ['awq', ['--bits', '3'], /LPQ_TARGET/],
    ['gguf', ['--bits', '4', '--group-size', '16'], /not a multiple of GGUF's 32/],
    ['gguf', ['--dtype', 'nvfp4'], /f4e2m1/],
    ['marlin', ['--bits', '3'], /LPQ_TARGET/],
  ];
  for (const [target, options, message] of cases) {
    const output = path.join(dir, 'q');
    const ran = await lpq(['quantize', model, '-o', output, '--method', 'rtn', ...options, '--pack', target]);
    assert.equal(ran.code, 2, `${target} ${options}: ${ran.stderr}`);
    assert.match(ran.stderr, /LPQ_TARGET.*takes no module/s);
    assert.match(ran.stderr, message);
    assert.equal(existsSync(output), false);
    const planned = await lpq(['quantize', model, '-o', output, ...options, '--pack', target, '--dry-run']);
    assert.match(planned.stderr, message);
  }
});

test('types that engines have pack with the group that is usual for them', async (t) => {
  const dir = scratch(t);
  for (const [i, [target, ...options]] of [
    ['compressed-tensors', '--dtype', 'f8e4m3'],
    ['compressed-tensors-w8a8', '--dtype', 'f8e4m3'],
    ['compressed-tensors-w8a8', '--bits', '8', '--group-size', 'channel'],
    ['gguf-q4_k', '--dtype', 'nvfp4'],
  ].entries()) {
    const output = path.join(dir, `q${i}`);
    const ran = await lpq(['quantize', model, '-o', output, '--method', 'rtn', ...options, '--pack', target as string]);
    assert.equal(ran.code, 0, ran.stderr);
    assert.match(ran.stdout, /packed 28 modules/);
    assert.doesNotMatch(ran.stdout, /left \d+ in another form/);
  }
});
