import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { createRuntime, type DType, fromTyped, readTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { complaints, type FakeCuda, fakeCuda } from './fake-cuda/fake.js';
import { headCases, headProduct } from './head-linear-cases.js';
import { decodeBf16, decodeF16 } from './support.js';

const DECODE: Partial<Record<DType, (bits: number) => number>> = { f16: decodeF16, bf16: decodeBf16 };
/** Half a unit of a type's last place. */
const ROUNDING: Partial<Record<DType, number>> = { f32: 2 ** -24, f16: 2 ** -11, bf16: 2 ** -8 };

for (const c of headCases)
  test(`every head's own product is that of fp64, and nothing else changes: ${c.name}`, async () => {
    const rt = createRuntime(2);
    const { x, weight, y } = headProduct(c);
    ops.headLinear(rt, x, weight.tensor, y, c.params);
    await rt.sync();
    const got = await readTyped(rt, y);
    const { heads, n, k, first, turned, fromDim, from, toDim, to } = c.params;
    const rows = weight.rows / heads;
    const values = await readTyped<Float32Array>(rt, x);
    const decode = DECODE[c.y] ?? ((value: number) => value);
    const untouched = fromTyped(
      c.y,
      [1],
      c.y === 'f32' ? new Float32Array(new Uint32Array([0xffffffff]).buffer) : Uint16Array.of(0xffff),
    );
    const poison = decode((await readTyped(rt, untouched))[0] as number);
    assert.ok(Number.isNaN(poison));
    for (let t = 0; t < c.tokens; t++)
      for (let h = 0; h < heads; h++)
        for (let j = 0; j < toDim; j++) {
          const found = decode(got[(t * heads + h) * toDim + j] as number);
          if (j < to || j >= to + n) {
            assert.ok(Number.isNaN(found), `token ${t}, head ${h}, column ${j} was written`);
            continue;
          }
          let [want, size] = [0, 0];
          for (let i = 0; i < k; i++) {
            const [row, column] = turned ? [first + i, j - to] : [first + j - to, i];
            const w = weight.values[(h * rows + row) * weight.columns + column] as number;
            const term = (values[(t * heads + h) * fromDim + from + i] as number) * w;
            [want, size] = [want + term, size + Math.abs(term)];
          }
          // k roundings of fp32 in a chain, and the one to y's type; f16 has subnormals.
          const bound = (k + 1) * 2 ** -24 * size + (ROUNDING[c.y] as number) * Math.abs(want) + 2 ** -25;
          assert.ok(Math.abs(found - want) <= bound, `token ${t}, head ${h}, column ${j}: ${found}, not ${want}`);
        }
  });

test('parts that are not there are refused by name', async () => {
  const [c] = headCases;
  for (const [change, names] of [
    [{ first: 3 }, /a head's part of weight has 5 rows/],
    [{ from: 4 }, /are not in a head of 5/],
    [{ heads: 3 }, /x has the shape \[3,10\]/],
  ] as const) {
    const rt = createRuntime(1);
    const { x, weight, y } = headProduct(c!);
    ops.headLinear(rt, x, weight.tensor, y, { ...c!.params, ...change });
    await assert.rejects(rt.sync(), (error: Error & { code: string }) => {
      assert.equal(error.code, 'LPQ_NATIVE_ARGUMENT');
      assert.match(error.message, names);
      return true;
    });
  }
});

const made = fakeCuda(
  ['few', 'many', 'small'].flatMap((rows) => [`lpq_latent_decode_${rows}`, `lpq_latent_join_${rows}`]),
);
const fake = made as FakeCuda;
if (typeof made !== 'string') after(() => fake.remove());

test('what a device launches for these products and for a cache of latents is what the CPU computes', (t) => {
  if (typeof made === 'string') return t.skip(made);
  const kernels = fake.simulated('latent');
  if (typeof kernels === 'string') return t.skip(kernels);
  const run = spawnSync(process.execPath, [fileURLToPath(new URL('./fake-cuda/latent.js', import.meta.url))], {
    encoding: 'utf8',
    env: { ...process.env, ...fake.env, FAKE_CUDA_KERNELS: kernels.file },
  });
  assert.equal(run.status, 0, run.stderr);
  assert.equal(complaints(run.stderr), '');
  const lines = run.stdout.trim().split('\n');
  assert.equal(lines.length, headCases.length + 6);
  for (const line of lines) {
    const [name = '', off] = line.split(/: (?=[^:]*$)/);
    if (name.startsWith('the verifier')) assert.equal(line, 'the verifier, many checks of latents: 0');
    // Products: sums of up to 192 terms in fp32 in another order, and half a unit of y's type. Attention: weights are rounded to f16.
    const bound = /latents/.test(name)
      ? 2 ** -9
      : /bf16$/.test(name)
        ? 2 ** -7
        : /f16$/.test(name)
          ? 2 ** -10
          : 2 ** -20;
    assert.ok(Number(off) <= bound, line);
  }
});
