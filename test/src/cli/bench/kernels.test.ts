import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { after, test } from 'node:test';
import { kernelBenchSchema } from '../../../../bench/kernels/schema.js';
import { readTuning, writeTuning } from '../../../../bench/kernels/tuning.js';
import type { KernelChoice } from '../../../../native/binding.js';
import { version } from '../../../../src/cli/version.js';
import { type FakeCuda, fakeCuda } from '../../../native/fake-cuda/fake.js';
import { events, lpq, scratch } from '../lpq.js';

// What the host asks of the products' kernels; the fake ones compute nothing.
const tiles = [1, 2, 4, 8];
const made = fakeCuda(tiles.flatMap((t) => [`lpq_gemm_int4_f16_h${t}`, `lpq_gemm_int4_f16_t${t}`]));
const skip = typeof made === 'string' ? made : false;
const fake = made as FakeCuda;
if (!skip) after(() => fake.remove());

const SMALL = ['bench', 'kernels', '--device', 'cpu', '--shapes', '128x64', '--m', '1', '--passes', '2'];

test('on the CPU products are timed, written as JSON, Markdown and SVG, and nothing is overwritten', async (t) => {
  const dir = scratch(t);
  const [json, md, svg] = ['r.json', 'r.md', 'r.svg'].map((name) => path.join(dir, name)) as [string, string, string];
  const args = [...SMALL, '--types', 'u4,f3e1m1', '--results', json, '--markdown', md, '--svg', svg];
  const ran = await lpq([...args, '--sustained', 'all', '--seconds', '0.1', '--json']);
  assert.equal(ran.code, 0, ran.stderr);
  const result = events(ran).at(-1) as { command: string; rows: unknown[] };
  const bench = kernelBenchSchema.parse(JSON.parse(readFileSync(json, 'utf8')));
  assert.equal(result.command, 'bench kernels');
  assert.deepEqual(result.rows, bench.rows);
  assert.deepEqual(
    bench.rows.map(({ type, sustained }) => [type, sustained !== undefined]),
    [
      ['u4', true],
      ['f3e1m1', true],
    ],
  );
  assert.match(readFileSync(md, 'utf8'), /^\| u4, K×N \| M=1 \|$/m);
  assert.match(readFileSync(svg, 'utf8'), /^<svg [\s\S]*<\/svg>\n$/);
  const again = await lpq([...SMALL, '--results', json]);
  assert.equal(again.code, 2);
  assert.match(again.stderr, /^LPQ_OUTPUT_EXISTS/);
});

test('a wrong option is refused before anything is measured', async (t) => {
  const never = path.join(scratch(t), 'never');
  const cases: [string[], string, RegExp][] = [
    [['--types', 'u9'], 'LPQ_TYPE', /u9/],
    [['--shapes', '12'], 'LPQ_USAGE', /--shapes/],
    [['--m', '0'], 'LPQ_USAGE', /--m/],
    [['--group', '16'], 'LPQ_USAGE', /--group/],
    [['--dtype', 'f32'], 'LPQ_USAGE', /--dtype/],
    [['--seconds', '3'], 'LPQ_USAGE', /--sustained/],
    [['--sustained', 'some'], 'LPQ_USAGE', /--sustained/],
    [['--sustained', 'all', '--seconds', '0'], 'LPQ_USAGE', /--seconds/],
    [['--tune', '--device', 'cpu'], 'LPQ_USAGE', /--tune/],
    [['--export', never], 'LPQ_USAGE', /never|--export/],
    [['--import', never, '--device', 'cpu'], 'LPQ_USAGE', /--import/],
    [['--explain', 'v100'], 'LPQ_USAGE', /v100/],
    [['--markdown', never, '--svg', never], 'LPQ_USAGE', /never/],
    [['--device', 'cuda:97'], 'LPQ_DEVICE', /cuda:97/],
  ];
  for (const [args, code, names] of cases) {
    const ran = await lpq(['bench', 'kernels', ...args, '--results', never]);
    assert.notEqual(ran.code, 0);
    const [first = ''] = ran.stderr.split('\n');
    assert.ok(first.startsWith(`${code}  `), ran.stderr);
    assert.match(first, names);
    assert.ok(!existsSync(never));
  }
});

test('--explain says what runs and why, and stored settings count where they are of the device', {
  skip,
}, async (t) => {
  const args = ['bench', 'kernels', '--shapes', '4096x4096', '--types', 'u4'];
  const plain = await lpq([...args, '--explain', 'h200', '--m', '16']);
  assert.equal(plain.code, 0, plain.stderr);
  assert.match(plain.stdout, /^u4 4096x4096 M=16 {2}NVIDIA H200\n {2}lpq_gemm_int4_f16_\w+: \d+ blocks/);
  assert.match(plain.stdout, /^ {2}- First stream, \d+\.\d us of an H200: /m);
  const file = path.join(scratch(t), 'tuning.json');
  const point = {
    layout: 'tilus',
    type: 'u4',
    activations: 'f16',
    group: 128,
    zeros: 'none',
    k: 4096,
    n: 4096,
  } as const;
  const points = [
    { ...point, m: 20, choiceUs: 30, bestUs: 20, best: { kernel: 'portable', stages: 3 } },
    { ...point, m: 33, choiceUs: 30, bestUs: 20, best: { kernel: 'portable', warpsN: 5 } },
    { ...point, m: 48, choiceUs: 30, bestUs: 20, best: { kernel: 'scaled' } },
    { ...point, m: 64, choiceUs: 20, bestUs: 20, best: {} },
  ];
  const key = { device: 'Fake 0', driver: 12040, lpq: version() };
  const written = { format: 'lpq-kernel-tuning', version: 1, ...key, date: '2026-11-21', points } as const;
  writeTuning(file, written);
  const env = { ...fake.env, LPQ_KERNEL_TUNING: file };
  const ask = async (m: number) => {
    const ran = await lpq([...args, '--explain', '--m', String(m), '--json'], env);
    assert.equal(ran.code, 0, ran.stderr);
    return (events(ran).at(-1) as { explain: { choice: KernelChoice }[] }).explain[0]!.choice;
  };
  // As many eights of tokens: 17 to 24.
  const [tuned, same, beyond, unfit, rounding, best] = await Promise.all([20, 17, 25, 40, 48, 64].map(ask));
  assert.deepEqual(
    [tuned, same, beyond, unfit, rounding, best].map((each) => each?.tuned),
    [true, true, false, false, false, false],
  );
  assert.match(tuned?.reasons.join(' ') ?? '', /timed at M = 20 .* took 50\.0 % longer/);
  assert.match(unfit?.reasons.join(' ') ?? '', /do not fit: warpsN is not 4, 8 or 16/);
  assert.match(rounding?.reasons.join(' ') ?? '', /do not fit: settings that were timed would round weights/);
  writeTuning(file, { ...written, lpq: '0.0.0' });
  assert.match((await ask(20)).reasons.join(' '), /are not used: lpq is '0\.0\.0'/);
});

test('on a device cuBLAS runs beside, sensors are read, and --tune tries every setting', { skip }, async (t) => {
  const blas = `
    int cublasCreate_v2(void** h) { return *h = (void*)16, 0; } int cublasDestroy_v2(void* h) { return (void)h, 0; }
    int cublasSetStream_v2(void* h, void* s) { return (void)h, (void)s, 0; }
    int cublasSetWorkspace_v2(void* h, void* m, unsigned long b) { return (void)h, (void)m, (void)b, 0; }
    int cublasSetMathMode(void* h, int m) { return (void)h, (void)m, 0; } int cublasGemmEx(void) { return 0; }
    int cublasGemmStridedBatchedEx(void) { return 0; } int cublasStrsm_v2(void) { return 0; } int cublasDtrsm_v2(void) { return 0; }
    int cublasSsyrk_v2(void) { return 0; } int cublasDsyrk_v2(void) { return 0; }`;
  const sensors = `
    #include <string.h>
    int nvmlInit_v2(void) { return 0; }
    int nvmlDeviceGetHandleByPciBusId_v2(const char* b, void** d) { return *d = (void*)16, strcmp(b, "0000:00:00.0") != 0; }
    int nvmlDeviceGetClockInfo(void* d, int w, unsigned* v) { return (void)d, *v = w == 1 ? 1500 : 3000, 0; }
    int nvmlDeviceGetPowerUsage(void* d, unsigned* v) { return (void)d, *v = 512345, 0; }
    int nvmlDeviceGetEnforcedPowerLimit(void* d, unsigned* v) { return (void)d, *v = 700000, 0; }
    int nvmlDeviceGetTemperature(void* d, int s, unsigned* v) { return (void)d, (void)s, *v = 51, 0; }
    int nvmlDeviceGetCurrentClocksThrottleReasons(void* d, unsigned long long* v) { return (void)d, *v = 5, 0; }`;
  const dir = scratch(t);
  const results = path.join(dir, 'r.json');
  const nvml = fake.library('libnvidia-ml.so.1', sensors);
  const env = {
    ...fake.env,
    LPQ_CUDA_LIBS: fake.library('libcublas.so.12', blas),
    LD_LIBRARY_PATH: `${fake.env.LD_LIBRARY_PATH}:${nvml}`,
    LPQ_KERNEL_TUNING: path.join(dir, 'kept', 'tuning.json'),
  };
  const exported = path.join(dir, 'exported.json');
  const args = ['bench', 'kernels', '--device', 'cuda', '--shapes', '4096x4096', '--m', '1,16', '--passes', '2'];
  const tune = ['--tune', '--export', exported, '--sustained', '--seconds', '0.3', '--results', results];
  const ran = await lpq([...args, ...tune], env);
  assert.equal(ran.code, 0, ran.stderr);
  assert.match(ran.stdout, /^tuned +kept in .*tuning\.json$/m);
  const kept = readTuning(env.LPQ_KERNEL_TUNING);
  assert.deepEqual(kept, readTuning(exported));
  assert.deepEqual([kept.device, kept.driver, kept.points.map(({ m }) => m)], ['Fake 0', 12040, [1, 16]]);
  const other = path.join(dir, 'other.json');
  writeTuning(other, { ...kept, driver: 11000 });
  const refused = await lpq(['bench', 'kernels', '--device', 'cuda', '--import', other], env);
  assert.match(refused.stderr, /^LPQ_KERNEL_TUNING {2}.*another driver/);
  writeTuning(other, { ...kept, points: kept.points.slice(0, 1).map((point) => ({ ...point, m: 64 })) });
  const imported = await lpq(['bench', 'kernels', '--device', 'cuda', '--import', other], env);
  assert.equal(imported.code, 0, imported.stderr);
  assert.equal(readTuning(env.LPQ_KERNEL_TUNING).points.length, 3);
  const bench = kernelBenchSchema.parse(JSON.parse(readFileSync(results, 'utf8')));
  // Every pass takes a millisecond of the fake's clock, however many products are in it.
  assert.deepEqual(
    bench.rows.map(({ us, cublasUs, smClockMhz }) => [us * bench.settings.products, cublasUs, smClockMhz]),
    [
      [1000, 50, 1500],
      [1000, 50, 1500],
    ],
  );
  const sustained = bench.rows[1]?.sustained;
  assert.deepEqual(sustained?.powerWatts, { least: 512.345, mean: 512.3, most: 512.345 });
  assert.deepEqual([sustained?.memoryClockMhz?.most, sustained?.temperatureC?.most], [3000, 51]);
  assert.deepEqual([sustained?.powerLimitWatts, sustained?.clockLimits], [700, ['power cap']]);
  assert.equal(bench.tuning?.points.length, 2);
  for (const point of bench.tuning?.points ?? []) {
    assert.ok(point.within && point.variants.length >= 15, `${point.variants.length}`);
    // The fake has neither the streaming kernel nor the bulk engine.
    assert.ok(point.variants.every(({ params }) => params.kernel === 'portable'));
    assert.equal(point.variants.length + point.refused, bench.tuning?.space);
  }
});
