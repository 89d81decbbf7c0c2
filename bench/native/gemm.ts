import { addon, allocate, createRuntime, typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';

/**
 * The matrix operations beside what fma on registers alone reach. Prints JSON. Run: node dist/bench/native/gemm.js [repeats]
 *
 * `gflops` is by the clock, the best of several runs. `perCore` is flops by seconds of processor time, the best too: it
 * holds when other work shares the machine, and its ratio to the same figure of the register loop is `ofPeak`.
 */
const repeats = Number(process.argv[2] ?? '7');
const rt = createRuntime();

interface Speed {
  gflops: number;
  perCore: number;
}

/** Best of `repeats` runs of `work`, which enqueues `flops`; repeated until a run is long enough for the clocks. */
async function best(flops: number, prepare: () => void, work: () => void): Promise<Speed> {
  const rounds = prepare === nothing ? Math.max(1, Math.ceil(2e10 / flops)) : 1;
  const result = { gflops: 0, perCore: 0 };
  for (let i = 0; i < repeats; i++) {
    prepare();
    await rt.sync();
    const before = process.cpuUsage();
    const start = performance.now();
    for (let r = 0; r < rounds; r++) work();
    await rt.sync();
    const seconds = (performance.now() - start) / 1e3;
    const used = process.cpuUsage(before);
    result.gflops = Math.max(result.gflops, (rounds * flops) / seconds / 1e9);
    result.perCore = Math.max(result.perCore, (rounds * flops) / ((used.user + used.system) / 1e6) / 1e9);
  }
  return result;
}

function nothing(): void {}

async function peak(dtype: 'f32' | 'f64'): Promise<Speed> {
  const facts = allocate('f64', [2]);
  const work = () => rt.enqueue('fma_peak', [], [facts], { dtype, rounds: 1e6 });
  work();
  await rt.sync();
  return await best(typed<Float64Array>(facts)[0]!, nothing, work);
}

function filled(dtype: 'f32' | 'bf16' | 'f64', shape: readonly number[]) {
  const tensor = allocate(dtype, shape);
  const data = typed<Float32Array | Float64Array | Uint16Array>(tensor);
  for (let i = 0; i < data.length; i++)
    data[i] = dtype === 'bf16' ? 0x3c00 + (i % 251) : ((i * 7919) % 1009) / 1009 - 0.5;
  return tensor;
}

const rows: Record<string, number | string>[] = [];
const round = (x: number, digits: number) => Number(x.toFixed(digits));
const report = (name: string, shape: string, speed: Speed, of: Speed) => {
  const ofPeak = round(speed.perCore / of.perCore, 3);
  rows.push({ name, shape, gflops: round(speed.gflops, 1), perCore: round(speed.perCore, 1), ofPeak });
};
const single = await peak('f32');
const double = await peak('f64');
for (const dtype of ['f32', 'bf16'] as const)
  for (const [t, n, k] of [
    [1, 4096, 4096],
    [16, 4096, 4096],
    [64, 4096, 4096],
    [512, 768, 256],
    [512, 2048, 2048],
    [4096, 2048, 2048],
    [4096, 4096, 1024],
  ] as const) {
    const [x, w, y] = [filled('f32', [t, k]), filled(dtype, [n, k]), allocate('f32', [t, n])];
    const speed = await best(2 * t * n * k, nothing, () => ops.linear(rt, x, w, undefined, y));
    report(`linear ${dtype}`, `T=${t} N=${n} K=${k}`, speed, single);
    for (const tensor of [x, w, y]) tensor.dispose();
  }
for (const k of [256, 768, 2048, 4096]) {
  const t = 4096;
  const [x, h] = [filled('f32', [t, k]), allocate('f64', [k, k])];
  ops.zero(rt, h);
  // One triangle: T K^2 flops. The figure counts what the mathematics needs, tiles across the diagonal cost more.
  const speed = await best(t * k * k, nothing, () => ops.gramAccumulate(rt, x, h));
  report('gram', `T=${t} K=${k}`, speed, single);
  for (const tensor of [x, h]) tensor.dispose();
}
for (const k of [256, 768, 2048, 4096]) {
  const [g, h, a, info] = [
    filled('f32', [k, k]),
    allocate('f64', [k, k]),
    allocate('f64', [k, k]),
    allocate('i32', [1]),
  ];
  ops.zero(rt, h);
  ops.gramAccumulate(rt, g, h);
  await rt.sync();
  for (let i = 0; i < k; i++) typed<Float64Array>(h)[i * k + i]! += k;
  const speed = await best(
    k ** 3 / 3,
    () => ops.cast(rt, h, a),
    () => ops.cholesky(rt, a, info),
  );
  report('cholesky', `K=${k} f64`, speed, double);
  for (const tensor of [g, h, a, info]) tensor.dispose();
}
console.log(
  JSON.stringify(
    { isa: addon().isa(), threads: rt.threads, node: process.version, peakF32: single, peakF64: double, rows },
    null,
    1,
  ),
);
