import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { after, test } from 'node:test';
import { modelBenchSchema } from '../../bench/model/schema.js';
import { attentionKernels } from '../native/fake-cuda/attention.js';
import { BLAS } from '../native/fake-cuda/blas.js';
import { type FakeCuda, fakeCuda } from '../native/fake-cuda/fake.js';
import { sampled } from '../sample.js';
import { events, lpq, model, scratch } from '../src/cli/lpq.js';
import { ARCHITECTURES, GOLDENS } from '../src/model/fixtures.js';

/** Kernels whose names have more parts than the fake makes up. */
const KERNELS = [
  ...['f16', 'bf16'].flatMap((dtype) =>
    [32, 64, 128, 256].flatMap((dims) => [`lpq_attention_${dtype}_${dims}`, `lpq_cached_attention_${dtype}_${dims}`]),
  ),
  ...attentionKernels(),
  ...[1, 2, 4, 8].flatMap((tiles) => [`lpq_gemm_int4_bf16_h${tiles}`, `lpq_gemm_int4_bf16_t${tiles}`]),
  ...['i8', 'f8', 'g4'].flatMap((kind) => [2, 4, 8, 16].map((tiles) => `lpq_gemm_act8_${kind}_${tiles}x1x1`)),
  ...['i8', 'f8', 'g4'].map((kind) => `lpq_gemm_act8_${kind}_2x1x2`),
  ...[2, 4, 8, 16].map((tiles) => `lpq_gemm_act8_w4x_${tiles}x1x1`),
  `lpq_gemm_act8_w4x_2x1x2`,
  ...[1, 2].flatMap((tiles) => [2, 4].map((rows) => `lpq_gemm_few_t${tiles}_r${rows}`)),
];
const made = fakeCuda(KERNELS, { hopper: true });
const fake = made as FakeCuda;
const skip = typeof made === 'string' ? made : false;
if (!skip) after(() => fake.remove());

// Kernels do nothing there: what is tried is everything before a launch, with the shapes and dtypes that whole models have.
test('steps over caches of 16 bits and of few are recorded and replayed on a device, of weights in every form', {
  skip,
}, async (t) => {
  const env = { ...fake.env, LPQ_CUDA_LIBS: fake.library('libcublas.so.12', BLAS) };
  const results = path.join(scratch(t), 'bench.json');
  const bench = ['bench', 'model', '--shape', 'tiny', '--device', 'cuda', '--passes', '1', '--m', '2'];
  const ran = await lpq(
    [
      ...[...bench, '--weights', 'dense,u4,w4ax,w4a8,w8a8,fp8', '--kv', '16,8,4,2', '--context', '300,512'],
      ...['--prefill', '300', '--results', results],
    ],
    env,
  );
  assert.equal(ran.code, 0, ran.stderr);
  const { rows, leftOut, machine, activations } = modelBenchSchema.parse(JSON.parse(readFileSync(results, 'utf8')));
  assert.deepEqual([rows.length, leftOut, machine.gpu, activations], [6 * 4 * 3, [], 'Fake 0', 'bf16']);
  const of = (weights: string, kv: number, phase: string, context: number) =>
    rows.find((row) => row.weights === weights && row.kv === kv && row.phase === phase && row.context === context)!;
  // Every pass takes a millisecond of the fake's clock. Tokens are packed in 128s, of 2 bits in 256s: of so many steps one
  // packs, as that to 512 tokens does.
  for (const row of rows)
    assert.equal(row.ms, row.context === 512 && row.kv < 16 ? 1 + 1 / (row.kv === 2 ? 256 : 128) : 1);
  assert.deepEqual(
    [of('dense', 4, 'decode', 300).kernels.kv_pack, of('dense', 4, 'prefill', 300).kernels.kv_pack! > 0],
    [undefined, true],
  );
  const bytes = (kv: number) => of('dense', kv, 'decode', 300).cacheBytes;
  // 2 sequences, 2 kv heads of 64, 4 blocks, keys and values.
  assert.equal(bytes(16), 2 * 300 * 128 * 4 * 2 * 2);
  assert.ok(bytes(8) > bytes(4));
  const products = {
    dense: 'linear',
    u4: 'gemm_packed',
    w4ax: 'gemm_comet',
    w4a8: 'gemm_act',
    w8a8: 'gemm_act',
    fp8: 'gemm_act',
  };
  for (const [weights, op] of Object.entries(products)) assert.ok(of(weights, 4, 'decode', 300).kernels[op]! > 0);
  // Launches: of a block those of docs/internals/decoding.md, then the embedding, the final norm and lm_head; 4 blocks.
  // Of codes made beside norms the first block's, whose norm adds nothing, are made apart.
  const launches = { dense: [9, 3], u4: [9, 3], w4ax: [13, 3], w4a8: [10, 4], w8a8: [10, 4], fp8: [10, 4] } as const;
  for (const [weights, [inBlock, outside]] of Object.entries(launches))
    for (const kv of [16, 4])
      assert.equal(of(weights, kv, 'decode', 300).calls, 4 * inBlock + outside, `${weights} KV${kv}`);
  // The memory that a step needs holds at least what it reads at once, and cuBLAS's workspace is a part of it.
  for (const row of rows) {
    assert.equal(row.memoryBytes, row.weightBytes + row.cacheBytes + row.workBytes);
    assert.ok(row.workBytes > 4 * 2 * 2048 && row.workBytes < 2 ** 27, `${row.workBytes}`);
  }
  // The older devices have no kernel that multiplies codes by codes.
  const refused = await lpq([...bench, '--weights', 'fp8'], { ...env, FAKE_CUDA_ARCH: '80' });
  assert.match(
    refused.stderr,
    /^LPQ_DEVICE {2}--weights fp8: this device has no kernel that multiplies codes by codes/,
  );
});

// Of every architecture: an operation that a device lacks, or a dtype that it does not take, is refused before a launch.
for (const name of sampled('architectures on a device', GOLDENS, 12))
  test(`${name}: its steps are those of a device`, { skip }, async (t) => {
    const env = { ...fake.env, LPQ_CUDA_LIBS: fake.library('libcublas.so.12', BLAS) };
    const results = path.join(scratch(t), 'bench.json');
    const config = path.join(ARCHITECTURES, name, 'config.json');
    const size = ['--m', '2', '--context', '5', '--prefill', '4', '--weights', 'dense', '--passes', '1'];
    const ran = await lpq(
      ['bench', 'model', '--device', 'cuda', '--shape', config, ...size, '--results', results],
      env,
    );
    assert.equal(ran.code, 0, ran.stderr);
    assert.deepEqual(modelBenchSchema.parse(JSON.parse(readFileSync(results, 'utf8'))).leftOut, []);
  });

test('text is generated on a device up to the logits, which kernels that do nothing leave to chance', {
  skip,
}, async () => {
  const env = { ...fake.env, LPQ_CUDA_LIBS: fake.library('libcublas.so.12', BLAS) };
  for (const kv of [[], ['--kv', 'k8v4', '--kv-fit'], ['--kv', '4', '--kv-group', '32', '--kv-layers', '1=8,3=k8v4']]) {
    const args = [
      'generate',
      model,
      '--prompt',
      'Once upon a time',
      '--prompt',
      'The',
      '--max-tokens',
      '3',
      '--ignore-eos',
    ];
    const ran = await lpq([...args, '--device', 'cuda', '--json', ...kv], env);
    const last = events(ran).at(-1);
    // Memory that no kernel wrote may read as NaN.
    if (ran.code === 0) assert.equal(last?.event, 'result');
    else assert.equal(last?.code, 'LPQ_MODULE_NUMERICS', JSON.stringify(last));
  }
  const refused = await lpq(
    ['generate', model, '--prompt', 'x', '--device', 'cuda', '--kv', '4', '--kv-granularity', 'token'],
    env,
  );
  assert.match(refused.stderr, /^LPQ_DEVICE {2}there is no kernel for this low-bit KV cache/);
});
