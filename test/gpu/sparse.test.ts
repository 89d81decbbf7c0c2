import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { createRuntime, fromTyped, type NativeRuntime, readTyped, type Tensor } from '../../native/binding.js';
import { gptqOps } from '../../native/gptq-ops.js';
import { ops } from '../../native/ops.js';
import { bundledCalibration } from '../../src/calibrate/bundled.js';
import { loadCalibration } from '../../src/calibrate/text.js';
import { openTokenizer } from '../../src/calibrate/tokenizer.js';
import { quantType, typeParams } from '../../src/core/quant-type.js';
import { GPTQ_DEFAULTS } from '../../src/gptq/options.js';
import { gptqQuantizer } from '../../src/gptq/quantizer.js';
import type { Quantizer } from '../../src/quantize/quantizer.js';
import { quantizeCheckpoint } from '../../src/quantize/run.js';
import { schemeFromOptions } from '../../src/quantize/scheme.js';
import { rtnQuantizer } from '../../src/rtn/quantizer.js';
import { Random } from '../native/support.js';
import { gpuTest } from './gpu.js';

// 2:4 on the device against the CPU, whose own tests compare it with a reference by definition (test/native/sparse.test.ts).

const MODEL = path.join(
  path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..'),
  'share',
  'tiny-llama',
);

interface Problem {
  readonly n: number;
  readonly k: number;
  readonly t: Float32Array;
  readonly u: Float32Array;
  readonly m: Float32Array;
  readonly scale: Float32Array;
  readonly zero: Float32Array;
  readonly group: Int32Array;
}

/** Correlated inputs; factors from the CPU, so that both devices start from the same numbers. */
async function problem(n: number, k: number, seed: number): Promise<Problem> {
  const random = new Random(seed);
  const rt = createRuntime();
  const x = random.normals(2 * k * k);
  for (let row = 0; row < 2 * k; row++) {
    const shared = random.normal();
    for (let c = 0; c < k; c++) x[row * k + c]! += shared;
  }
  const h = rt.allocate('f64', [k, k]);
  ops.zero(rt, h);
  ops.gramAccumulate(rt, fromTyped('f32', [2 * k, k], x), h, { weight: 1 });
  const out = {
    u: rt.allocate('f32', [k, k]),
    m: rt.allocate('f32', [k, k]),
    dead: rt.allocate('u8', [k]),
    info: rt.allocate('f64', [3]),
  };
  gptqOps.factor(
    rt,
    h,
    fromTyped(
      'i32',
      [k],
      Int32Array.from({ length: k }, (_, i) => i),
    ),
    out,
    0.01,
  );
  return {
    n,
    k,
    t: random.normals(n * k),
    u: (await readTyped<Float32Array>(rt, out.u)).slice(),
    m: (await readTyped<Float32Array>(rt, out.m)).slice(),
    scale: random.normals(n * 2, 0.02).map((v) => 0.45 + v),
    zero: new Float32Array(n * 2),
    group: Int32Array.from({ length: k }, (_, j) => Math.floor((2 * j) / k)),
  };
}

/** (What - T) M (What - T)ᵀ, row by row. */
function costs(p: Problem, level: Float32Array): Float64Array {
  return Float64Array.from({ length: p.n }, (_, row) => {
    const error = Float64Array.from(
      { length: p.k },
      (_, j) => level[row * p.k + j]! * p.scale[row * 2 + p.group[j]!]! - p.t[row * p.k + j]!,
    );
    let sum = 0;
    for (let i = 0; i < p.k; i++) for (let j = 0; j < p.k; j++) sum += error[i]! * p.m[i * p.k + j]! * error[j]!;
    return sum;
  });
}

async function solved(rt: NativeRuntime, p: Problem, name: string, sweeps: number) {
  const { n, k } = p;
  const up = (shape: number[], data: Float32Array): Tensor => rt.upload(fromTyped('f32', shape, data));
  const inputs = {
    t: up([n, k], p.t),
    matrix: up([k, k], p.u),
    scale: up([n, 2], p.scale),
    zero: up([n, 2], p.zero),
    group: rt.upload(fromTyped('i32', [k], p.group)),
  };
  const [level, keep, pruned, kept] = Array.from({ length: 4 }, () => rt.allocate('f32', [n, k])) as [
    Tensor,
    Tensor,
    Tensor,
    Tensor,
  ];
  const changed = rt.allocate('f64', [1]);
  const type = typeParams(quantType(name));
  gptqOps.prune(rt, inputs.t, inputs.matrix, pruned, kept);
  gptqOps.sparseSolve(rt, inputs, { level, keep }, type);
  const first = (await readTyped<Float32Array>(rt, level)).slice();
  const descent = { ...inputs, matrix: up([k, k], p.m) };
  gptqOps.sparseDescend(rt, descent, { level, keep, changed }, { ...type, sweeps });
  return {
    first,
    level: (await readTyped<Float32Array>(rt, level)).slice(),
    keep: (await readTyped<Float32Array>(rt, keep)).slice(),
    pruned: (await readTyped<Float32Array>(rt, pruned)).slice(),
    kept: (await readTyped<Float32Array>(rt, kept)).slice(),
    changed: (await readTyped<Float64Array>(rt, changed))[0]!,
  };
}

gpuTest('pairs and codes are the CPU’s but where two cost the same', async () => {
  for (const [n, k, name] of [
    [5, 4, 'i4'],
    [33, 128, 'i4'],
    [37, 300, 'f6e3m2'],
    [64, 516, 'i4'],
  ] as const) {
    const p = await problem(n, k, n + k);
    const [gpu, cpu] = [
      await solved(createRuntime({ device: 'cuda:0' }), p, name, 3),
      await solved(createRuntime(), p, name, 3),
    ];
    for (const keep of [gpu.keep, gpu.kept])
      for (let j = 0; j < keep.length; j += 4)
        assert.equal(
          keep.subarray(j, j + 4).reduce((a, b) => a + b),
          2,
        );
    gpu.keep.forEach((value, i) => {
      if (value === 0) assert.equal(gpu.level[i], 0);
    });
    // One block of columns has no product before it: the very same numbers. Products of later ones add in another order,
    // which moves a choice only where two cost the same to some 1e-6; what follows it in its row then differs too.
    if (k <= 128) {
      assert.deepEqual(gpu.first, cpu.first, name);
      assert.deepEqual(gpu.pruned, cpu.pruned, name);
    }
    const same = gpu.first.filter((value, i) => value === cpu.first[i]).length;
    assert.ok(same > 0.9 * n * k, `${name}: ${same} of ${n * k} codes are the same`);
    const total = (level: Float32Array) => costs(p, level).reduce((a, b) => a + b, 0);
    assert.ok(Math.abs(total(gpu.first) / total(cpu.first) - 1) < 0.02);
    assert.ok(Math.abs(total(gpu.level) / total(cpu.level) - 1) < 0.02);
    assert.ok(total(gpu.level) < total(gpu.first) && gpu.changed > 0);
  }
});

gpuTest('magnitude pruning gives the CPU’s bytes', async () => {
  const random = new Random(5);
  for (const dtype of ['f32', 'f16', 'bf16'] as const) {
    const cpu = createRuntime();
    const w = cpu.allocate(dtype, [7, 36]);
    // Rounded coarsely, so that equal magnitudes meet.
    const values = random.normals(7 * 36).map((v) => Math.round(2 * v) / 2);
    ops.cast(cpu, fromTyped('f32', [7, 36], values), w);
    await cpu.sync();
    const outputs = await Promise.all(
      [cpu, createRuntime({ device: 'cuda:0' })].map(async (rt) => {
        const [pruned, mask] = [rt.allocate('f32', [7, 36]), rt.allocate('u8', [7, 5])];
        ops.pruneMagnitude(rt, rt.upload(w), { pruned, mask });
        return [...(await readTyped(rt, pruned)), ...(await readTyped(rt, mask))];
      }),
    );
    assert.deepEqual(outputs[1], outputs[0], dtype);
  }
});

/** Relative errors of the modules of the tiny model. */
async function errors(t: TestContext, rt: NativeRuntime, quantizer: Quantizer): Promise<Map<string, number | null>> {
  const dir = mkdtempSync(path.join(tmpdir(), 'lpq-gpu-'));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  const { modules } = await quantizeCheckpoint([rt], {
    source: MODEL,
    output: path.join(dir, 'out'),
    scheme: schemeFromOptions({ bits: 4, sparsity: '2:4' }),
    rules: [],
    quantizer,
    calibration: quantizer.statistics
      ? await loadCalibration(bundledCalibration(), await openTokenizer(MODEL), { samples: 32, length: 512, seed: 0 })
      : undefined,
    lmHead: false,
    options: {},
    version: 'test',
  });
  return new Map(modules.map(({ name, relativeError }) => [name, relativeError]));
}

gpuTest('a model: module errors are those of the CPU, and rounding runs through', async (t) => {
  const gptq = gptqQuantizer(GPTQ_DEFAULTS);
  const [gpu, cpu] = [
    await errors(t, createRuntime({ device: 'cuda:0' }), gptq),
    await errors(t, createRuntime(), gptq),
  ];
  for (const [name, error] of gpu) {
    const other = cpu.get(name) as number;
    assert.ok(Math.abs((error as number) / other - 1) < 0.05, `${name}: ${error} and ${other}`);
  }
  assert.equal((await errors(t, createRuntime({ device: 'cuda:0' }), rtnQuantizer())).size, 28);
});
