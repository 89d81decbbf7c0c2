import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import type { NativeRuntime } from '../../../../native/binding.js';
import { checkProducts, productsUsed } from '../../../../src/cli/options/products.js';
import { lpq, model, scratch } from '../lpq.js';

const result = (stdout: string) => JSON.parse(stdout.trim().split('\n').at(-1) as string);

test('eval and generate say which products they used, and bf16 ones change a perplexity little', async (t) => {
  const text = path.join(scratch(t), 'text.txt');
  writeFileSync(text, readFileSync(path.join(model, '..', 'text', 'books-valid.txt'), 'utf8').slice(0, 4000));
  const found: number[] = [];
  for (const products of [undefined, 'f32', 'bf16']) {
    const wish = products ? ['--products', products] : [];
    const { code, stdout, stderr } = await lpq([
      'eval',
      model,
      '--text',
      text,
      '--ctx',
      '64',
      '--device',
      'cpu',
      '--json',
      ...wish,
    ]);
    assert.equal(code, 0, stderr);
    const { ppl, products: used } = result(stdout);
    assert.equal(used, products ?? 'f32');
    found.push(ppl);
  }
  const [plain, f32, bf16] = found as [number, number, number];
  assert.equal(plain, f32);
  assert.notEqual(bf16, f32);
  // Rounding to 8 bits moves log-likelihoods by some thousandths.
  assert.ok(Math.abs(bf16 / f32 - 1) < 0.02, `${bf16} beside ${f32}`);
  const wrote = await lpq([
    'generate',
    model,
    '--prompt',
    'Once',
    '--max-tokens',
    '2',
    '--products',
    'bf16',
    '--device',
    'cpu',
    '--json',
  ]);
  assert.equal(result(wrote.stdout).products, 'bf16');
});

test('other types are refused, and the option where the device has no choice', async () => {
  const { code, stderr } = await lpq(['eval', model, '--text', 'x', '--products', 'f16']);
  assert.equal(code, 2);
  assert.match(stderr, /--products/);
  const device = { device: 'cuda:0', products: 'f32' } as unknown as NativeRuntime;
  assert.throws(() => checkProducts(device, { products: 'bf16' }), {
    code: 'LPQ_USAGE',
    message: /no effect on cuda:0/,
  });
  checkProducts(device, {});
  assert.deepEqual(productsUsed(device), {});
});
