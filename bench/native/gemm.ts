import { addon, allocate, createRuntime, typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';

/**
 * GFLOP/s of the matrix operations beside what fma on registers alone reach on the same threads; the best of several
 * runs, since other work may share the machine. Prints JSON. Run: node dist/bench/native/gemm.js [repeats]
 */
const repeats = Number(process.argv[2] ?? '7');
const rt = createRuntime();

async function peak(dtype: 'f32' | 'f64'): Promise<number> {
  const facts = allocate('f64', [2]);
  let best = 0;
  for (let i = 0; i < repeats; i++) {
    rt.enqueue('fma_peak', [], [facts], { dtype, rounds: 2e6 });
    await rt.sync();
    const [flops = 0, seconds = 1] = typed<Float64Array>(facts);
    best = Math.max(best, flops / seconds / 1e9);
  }
  return best;
}

/** Best GFLOP/s of `work`, which enqueues `flops` of work, timed by the queue itself. */
async function best(flops: number, prepare: () => void, work: () => void, op: string): Promise<number> {
  let result = 0;
  for (let i = 0; i < repeats; i++) {
    prepare();
    await rt.sync();
    rt.profile();
    work();
    await rt.sync();
    result = Math.max(result, flops / rt.profile()[op]!.seconds / 1e9);
  }
  return result;
}

function filled(dtype: 'f32' | 'bf16' | 'f64', shape: readonly number[]) {
  const tensor = allocate(dtype, shape);
  const data = typed<Float32Array | Float64Array | Uint16Array>(tensor);
  for (let i = 0; i < data.length; i++)
    data[i] = dtype === 'bf16' ? 0x3c00 + (i % 251) : ((i * 7919) % 1009) / 1009 - 0.5;
  return tensor;
}

const rows: Record<string, number | string>[] = [];
const report = (name: string, shape: string, gflops: number, of: number) => {
  rows.push({ name, shape, gflops: Number(gflops.toFixed(1)), ofPeak: Number((gflops / of).toFixed(3)) });
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
    const gflops = await best(
      2 * t * n * k,
      () => {},
      () => ops.linear(rt, x, w, undefined, y),
      'linear',
    );
    report(`linear ${dtype}`, `T=${t} N=${n} K=${k}`, gflops, single);
    for (const tensor of [x, w, y]) tensor.dispose();
  }
for (const k of [256, 768, 2048, 4096]) {
  const t = 4096;
  const [x, h] = [filled('f32', [t, k]), allocate('f64', [k, k])];
  // One triangle: T K^2 flops. The figure counts what the mathematics needs, tiles across the diagonal cost more.
  const gflops = await best(
    t * k * k,
    () => ops.zero(rt, h),
    () => ops.gramAccumulate(rt, x, h),
    'gram_accumulate',
  );
  report('gram', `T=${t} K=${k}`, gflops, single);
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
  const gflops = await best(
    k ** 3 / 3,
    () => ops.cast(rt, h, a),
    () => ops.cholesky(rt, a, info),
    'cholesky',
  );
  report('cholesky', `K=${k} f64`, gflops, double);
  for (const tensor of [g, h, a, info]) tensor.dispose();
}
console.log(
  JSON.stringify(
    { isa: addon().isa(), threads: rt.threads, node: process.version, peakF32: single, peakF64: double, rows },
    null,
    1,
  ),
);
