import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { addon, type KernelQuestion } from '../../native/binding.js';
import { DESCRIBED } from '../../src/cli/bench/explain.js';
import { QUANT_TYPES } from '../../src/core/quant-type.js';

// The choice of kernel needs no device: it rehearses the operation on one that is described.
const DEVICES = DESCRIBED;
const u4 = (m: number, k: number, n: number, more: Partial<KernelQuestion> = {}): KernelQuestion => ({
  device: 'h200',
  layout: 'tilus',
  type: 'u4',
  m,
  k,
  n,
  group: 128,
  activations: 'f16',
  zero: 8,
  ...more,
});
const ask = (question: KernelQuestion) => addon().explainKernel(question);
const kernels = (question: KernelQuestion) => ask(question).launches.map(({ kernel }) => kernel);

test('few tokens stream on Hopper, and older devices run mma.sync', () => {
  assert.deepEqual(kernels(u4(1, 4096, 4096)), ['lpq_gemm_int4_f16_s1']);
  assert.deepEqual(kernels(u4(16, 4096, 4096)), ['lpq_gemm_int4_f16_s2']);
  assert.deepEqual(kernels(u4(16, 4096, 4096, { device: 'a100' })), ['lpq_gemm_int4_f16_t2']);
  assert.deepEqual(kernels(u4(16, 4096, 4096, { device: 'rtx4090', activations: 'bf16' })), ['lpq_gemm_int4_bf16_t2']);
  assert.deepEqual(kernels(u4(512, 4096, 4096)), ['lpq_gemm_int4_f16_c16x1x1']);
  assert.deepEqual(kernels(u4(512, 8192, 28672, { type: 'u6', zero: 32 })), ['lpq_gemm_int6_f16_c32x1x1']);
  assert.deepEqual(kernels(u4(100, 4096, 4096, { layout: 'marlin', device: 'a100' })), ['lpq_marlin_u4_f16_t8']);
});

test('many tokens without wgmma take the widest tiles that shared memory holds', () => {
  const large = (more: Partial<KernelQuestion>) => kernels(u4(512, 4096, 4096, { device: 'a100', ...more }));
  assert.deepEqual(large({}), ['lpq_large_int4_f16_t16']);
  assert.deepEqual(large({ type: 'u8', zero: 128, activations: 'bf16' }), ['lpq_large_int8_bf16_t16']);
  assert.deepEqual(large({ m: 40 }), ['lpq_large_int4_f16_t8']);
  assert.deepEqual(large({ device: 'rtx4090' }), ['lpq_large_int4_f16_t16']);
  assert.deepEqual(large({ device: 'rtx3090', type: 'u8', zero: 128 }), ['lpq_large_int8_f16_t8']);
});

test('a device without kernels of its own runs the portable ones', () => {
  // Of compute capability 12.0: no wgmma, and shared memory as small as a 4090's.
  const both = (more: Partial<KernelQuestion>) =>
    ['rtx5090', 'rtx4090'].map((device) => kernels(u4(16, 4096, 4096, { device, ...more })));
  for (const more of [{}, { m: 512 }, { type: 'u6', zero: 32 }, { layout: 'marlin' as const }]) {
    const [newest, older] = both(more);
    assert.deepEqual(newest, older);
  }
});

test("the cut of TurboMind's and MARLIN's layouts is told with what it is predicted to take", () => {
  for (const layout of ['turbomind', 'marlin'])
    for (const device of DEVICES) {
      const { reasons } = ask(u4(16, 4096, 28672, { layout, device }));
      assert.match(
        reasons.at(-1) as string,
        /^First stripes, \d+\.\d us of an H200: .* busiest block, \d+ steps, and the \d+ blocks? that share a column\.$/,
      );
    }
});

test('rows that no copy can take are padded first', () => {
  const [first, second] = kernels(u4(4, 1001, 999));
  assert.deepEqual([first, second?.startsWith('lpq_gemm_int4_f16_')], ['lpq_pad_rows', true]);
});

test('every product has launches, reasons and a workspace that holds them, the same ones every time', () => {
  const question = fc.record({
    device: fc.constantFrom(...DEVICES),
    layout: fc.constant('tilus'),
    type: fc.constantFrom(...QUANT_TYPES.map(({ name }) => name)),
    m: fc.integer({ min: 1, max: 5000 }),
    n: fc.integer({ min: 1, max: 70_000 }),
    k: fc.integer({ min: 1, max: 30_000 }),
    group: fc.constantFrom(0, 32, 64, 128),
    activations: fc.constantFrom('f16' as const, 'bf16' as const),
    bias: fc.boolean(),
  });
  const shared: Record<string, number> = {
    h200: 232448,
    h100: 232448,
    a100: 166912,
    rtx5090: 101376,
    rtx4090: 101376,
    rtx3090: 101376,
  };
  fc.assert(
    fc.property(question, (asked) => {
      const choice = ask(asked);
      assert.ok(choice.launches.length >= 1 && choice.reasons.length >= 2);
      assert.ok(choice.workspace >= 512 + 2 ** 18);
      for (const launch of choice.launches) {
        assert.match(launch.kernel, /^lpq_/);
        assert.ok(launch.grid >= 1 && launch.threads >= 32 && launch.threads <= 1024);
        assert.ok(launch.shared <= (shared[asked.device] as number) && launch.cluster <= 8);
        assert.equal(launch.grid % launch.cluster, 0);
      }
      assert.deepEqual(ask(asked), choice);
    }),
    { numRuns: 300 },
  );
});

test('a rehearsal tells the whole ranking: plans with their times, and why there is none', () => {
  const told = (question: KernelQuestion) => ask(question).reasons.slice(1);
  const few = told(u4(16, 4096, 4096));
  assert.deepEqual(
    few.map((reason) => /^(?:First|Then|Not) \w+/.exec(reason)?.[0]),
    ['First stream', 'Then wide', 'Then hopper', 'Then portable', 'Not scaled', 'Not large'],
  );
  assert.match(few[0] as string, /^First stream, \d+\.\d us of an H200: /);
  assert.match(few[4] as string, /^Not scaled: up to 16 tokens are multiplied with weights that are not rounded\.$/);
  assert.match(
    told(u4(16, 4096, 4096, { device: 'a100' }))[1] as string,
    /^Not stream: it needs wgmma, which NVIDIA A100 \(8\.0\) /,
  );
});

test('what no kernel takes is refused by name', () => {
  const refused = (question: KernelQuestion, code: string, says: RegExp) =>
    assert.throws(
      () => ask(question),
      (error: { code?: string; message: string }) => error.code === code && says.test(error.message),
    );
  refused(u4(1, 64, 64, { layout: 'gptq' }), 'LPQ_NATIVE_ARGUMENT', /gptq/);
  refused(u4(1, 64, 64, { type: 'u9' }), 'LPQ_NATIVE_PARAM', /u9/);
  refused(u4(1, 64, 64, { type: 'f4e2m2' }), 'LPQ_NATIVE_PARAM', /f4e2m2/);
  refused(u4(1, 64, 64, { group: 16 }), 'LPQ_NATIVE_ARGUMENT', /group/);
  refused(u4(1, 0, 64), 'LPQ_NATIVE_ARGUMENT', /K is 0/);
  refused(u4(1, 64, 2 ** 31), 'LPQ_NATIVE_ARGUMENT', /2\^31/);
  refused(u4(1, 64, 64, { device: 'v100' }), 'LPQ_CUDA_DEVICE', /v100/);
  refused(u4(1, 64, 64, { type: 'f4e2m1', zeros: 'u8', zero: 0 }), 'LPQ_NATIVE_ARGUMENT', /zero points/);
  refused(u4(1, 64, 64, { layout: 'marlin', type: 'u3' }), 'LPQ_NATIVE_ARGUMENT', /u4 and u8/);
  refused(u4(1, 100, 64, { layout: 'turbomind' }), 'LPQ_NATIVE_ARGUMENT', /multiple of 32/);
});
