import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { after, test } from 'node:test';
import { type FakeCuda, fakeCuda } from '../../../native/fake-cuda/fake.js';
import { events, lpq, model, scratch } from '../lpq.js';

const made = fakeCuda();
const skip = typeof made === 'string' ? made : false;
const fake = made as FakeCuda;
if (!skip) after(() => fake.remove());

test('the pack engine is timed layout by layout', async () => {
  const args = [
    'bench',
    'pack',
    '--shape',
    '256x128',
    '--layouts',
    'tilus-3,marlin',
    '--device',
    'cpu',
    '--passes',
    '2',
  ];
  const ran = await lpq([...args, '--json']);
  assert.equal(ran.code, 0, ran.stderr);
  const { rows } = events(ran).at(-1) as { rows: Record<string, number>[] };
  assert.deepEqual(
    rows.map(({ layout, bits, bytes }) => [layout, bits, bytes]),
    [
      ['tilus', 3, 12288],
      ['marlin', 4, 16384],
      ['marlin', 8, 32768],
    ],
  );
  for (const { bytesPerSecond, copyShare, idleBytesPerSecond } of rows)
    assert.ok((bytesPerSecond as number) > 0 && (copyShare as number) > 0 && (idleBytesPerSecond as number) > 0);
});

test('a whole model is packed beside copying what it packs', async () => {
  const args = ['bench', 'pack', '--model', 'tiny', '--blocks', '1', '--dtype', 'u3', '--rounds', '1', '--json'];
  const ran = await lpq(args);
  assert.equal(ran.code, 0, ran.stderr);
  const result = events(ran).at(-1) as Record<string, number & { bytes: number }>;
  assert.ok((result.seconds as number) > 0 && (result.output?.bytes as number) > 1e5);
  assert.ok(Math.abs((result.ratio as number) - (result.seconds as number) / (result.copySeconds as number)) < 1e-9);
});

test('wrong options of bench pack are refused', async () => {
  for (const [args, names] of [
    [['--layouts', 'tilus-9'], /tilus-9/],
    [['--layouts', 'awq'], /awq/],
    [['--shape', '100x100', '--layouts', 'tilus'], /tiles of tilus/],
    [['--shape', '128x128,256x256'], /one shape/],
    [['--target', 'tilus'], /--target/],
    [['--model', 'tiny', '--layouts', 'tilus'], /--layouts/],
  ] as const) {
    const ran = await lpq(['bench', 'pack', ...args]);
    assert.equal(ran.code, 2, ran.stderr);
    assert.match(ran.stderr.split('\n')[0] ?? '', names);
  }
});

test('lpq pack --device cuda writes the bytes of the CPU', { skip }, async (t) => {
  const kernels = fake.simulated('layout');
  if (typeof kernels === 'string') return t.skip(kernels);
  const dir = scratch(t);
  const quantized = path.join(dir, 'quantized');
  const made = await lpq(['quantize', model, '-o', quantized, '--bits', '3', '--method', 'rtn']);
  assert.equal(made.code, 0, made.stderr);
  const env = { ...fake.env, FAKE_CUDA_KERNELS: kernels.file };
  const [here, there] = [path.join(dir, 'cpu'), path.join(dir, 'cuda')];
  for (const [output, device] of [
    [here, 'cpu'],
    [there, 'cuda'],
  ] as const) {
    const ran = await lpq(['pack', quantized, '--target', 'tilus', '-o', output, '--device', device], env);
    assert.equal(ran.code, 0, ran.stderr);
  }
  for (const file of ['model.safetensors', 'lpq.json'])
    assert.ok(readFileSync(path.join(here, file)).equals(readFileSync(path.join(there, file))), file);
  const failed = await lpq(['pack', quantized, '--target', 'tilus', '-o', path.join(dir, 'no'), '--device', 'cuda'], {
    ...env,
    FAKE_CUDA_FAIL: '719',
    FAKE_CUDA_AFTER: '3',
  });
  assert.equal(failed.code, 3);
  assert.match(failed.stderr, /^LPQ_CUDA_LOST .*layout_pack/m);
  assert.deepEqual(
    readdirSync(dir)
      .filter((name) => !name.includes('.report.'))
      .sort(),
    ['cpu', 'cuda', 'quantized'],
  );
});
