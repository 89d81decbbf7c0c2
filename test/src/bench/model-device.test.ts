import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { after, test } from 'node:test';
import { modelBenchSchema } from '../../../src/bench/model/schema.js';
import { attentionKernels } from '../../native/fake-cuda/attention.js';
import { type FakeCuda, fakeCuda } from '../../native/fake-cuda/fake.js';
import { events, lpq, model, scratch } from '../cli/lpq.js';

/** Kernels whose names have more parts than the fake makes up. */
const KERNELS = [
  ...['f16', 'bf16'].flatMap((dtype) =>
    [32, 64, 128, 256].flatMap((dims) => [`lpq_attention_${dtype}_${dims}`, `lpq_cached_attention_${dtype}_${dims}`]),
  ),
  ...attentionKernels(),
];
const made = fakeCuda(KERNELS);
const fake = made as FakeCuda;
const skip = typeof made === 'string' ? made : false;
if (!skip) after(() => fake.remove());

const BLAS = `
  int cublasCreate_v2(void** h) { return *h = (void*)16, 0; } int cublasDestroy_v2(void* h) { return (void)h, 0; }
  int cublasSetStream_v2(void* h, void* s) { return (void)h, (void)s, 0; }
  int cublasSetWorkspace_v2(void* h, void* m, unsigned long b) { return (void)h, (void)m, (void)b, 0; }
  int cublasSetMathMode(void* h, int m) { return (void)h, (void)m, 0; } int cublasGemmEx(void) { return 0; }
  int cublasGemmStridedBatchedEx(void) { return 0; } int cublasStrsm_v2(void) { return 0; } int cublasDtrsm_v2(void) { return 0; }
  int cublasSsyrk_v2(void) { return 0; } int cublasDsyrk_v2(void) { return 0; }`;

// Kernels do nothing there: what is tried is everything before a launch, with the shapes and dtypes that whole models have.
test('steps over caches of 16 bits and of few are recorded and replayed on a device', { skip }, async (t) => {
  const env = { ...fake.env, LPQ_CUDA_LIBS: fake.library('libcublas.so.12', BLAS) };
  const results = path.join(scratch(t), 'bench.json');
  const ran = await lpq(
    [
      ...['bench', 'model', '--shape', 'tiny', '--device', 'cuda', '--weights', 'dense', '--kv', '16,8,4,2'],
      ...['--m', '2', '--context', '300', '--prefill', '300', '--passes', '1', '--results', results],
    ],
    env,
  );
  assert.equal(ran.code, 0, ran.stderr);
  const { rows, leftOut, machine, activations } = modelBenchSchema.parse(JSON.parse(readFileSync(results, 'utf8')));
  assert.deepEqual([rows.length, leftOut, machine.gpu, activations], [8, [], 'Fake 0', 'bf16']);
  // Every pass takes a millisecond of the fake's clock.
  assert.ok(rows.every(({ ms }) => ms === 1));
  const bytes = (kv: number) => rows.find((row) => row.kv === kv && row.phase === 'decode')?.cacheBytes ?? 0;
  // 2 sequences, 2 kv heads of 64, 4 blocks, keys and values.
  assert.equal(bytes(16), 2 * 300 * 128 * 4 * 2 * 2);
  assert.ok(bytes(8) > bytes(4));
});

test('text is generated on a device up to the logits, which kernels that do nothing leave to chance', {
  skip,
}, async () => {
  const env = { ...fake.env, LPQ_CUDA_LIBS: fake.library('libcublas.so.12', BLAS) };
  for (const kv of [[], ['--kv', '4']]) {
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
  const refused = await lpq(['generate', model, '--prompt', 'x', '--device', 'cuda', '--kv', 'k8v4'], env);
  assert.match(refused.stderr, /^LPQ_DEVICE {2}there is no kernel for this cache of few bits/);
});
