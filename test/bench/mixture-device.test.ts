import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { after, test } from 'node:test';
import { modelBenchSchema } from '../../bench/model/schema.js';
import { attentionKernels } from '../native/fake-cuda/attention.js';
import { BLAS } from '../native/fake-cuda/blas.js';
import { type FakeCuda, fakeCuda } from '../native/fake-cuda/fake.js';
import { lpq, scratch } from '../src/cli/lpq.js';

const KERNELS = [
  ...['f16', 'bf16'].flatMap((dtype) => [64, 128].map((dims) => `lpq_attention_${dtype}_${dims}`)),
  ...['f16', 'bf16'].flatMap((dtype) => [64, 128].map((dims) => `lpq_cached_attention_${dtype}_${dims}`)),
  ...attentionKernels(),
  ...[1, 2, 4, 8].flatMap((tiles) => [`lpq_gemm_int4_bf16_h${tiles}`, `lpq_gemm_int4_bf16_t${tiles}`]),
  'lpq_experts_int4_bf16_m8_o',
  ...[2, 8].flatMap((tiles) => [`lpq_experts_int4_bf16_h${tiles}`, `lpq_experts_int4_bf16_t${tiles}`]),
];
const made = fakeCuda(KERNELS, { hopper: true });
const fake = made as FakeCuda;
if (typeof made !== 'string') after(() => fake.remove());

// Kernels do nothing there, so that counts which are read back would be those of memory that nobody wrote.
for (const arch of ['90', '80'])
  test(`a mixture of packed experts takes two products a block of all experts on a device of ${arch}`, async (t) => {
    if (typeof made === 'string') return t.skip(made);
    const results = path.join(scratch(t), 'bench.json');
    const env = { ...fake.env, LPQ_CUDA_LIBS: fake.library('libcublas.so.12', BLAS), FAKE_CUDA_ARCH: arch };
    const bench = ['bench', 'model', '--shape', 'tiny-moe', '--device', 'cuda', '--passes', '1', '--m', '2'];
    const sizes = ['--weights', 'u4', '--kv', '16,4', '--context', '300', '--prefill', '300', '--results', results];
    const ran = await lpq([...bench, ...sizes], env);
    assert.equal(ran.code, 0, ran.stderr);
    const { rows, leftOut } = modelBenchSchema.parse(JSON.parse(readFileSync(results, 'utf8')));
    assert.deepEqual([rows.length, leftOut], [4, []]);
    for (const { phase, calls, kernels } of rows) {
      // 4 blocks of the launches of docs/internals/decoding.md; the embedding, the final norm and lm_head.
      if (phase === 'decode') assert.equal(calls, 4 * 13 + 3);
      assert.ok(kernels.gemm_experts! > 0);
    }
  });
