import { createHash } from 'node:crypto';
import { addon, createRuntime, fromTyped, type Tensor } from '../../native/binding.js';
import { gptqOps } from '../../native/gptq-ops.js';
import { ops } from '../../native/ops.js';
import { quantType, typeParams } from '../../src/core/quant-type.js';
import { pack } from '../../src/layout/engine.js';
import { marlinWeight } from '../../src/pack/layouts/marlin.js';
import { tilusWeight } from '../../src/pack/layouts/tilus.js';
import { f32, i32, poisoned, Random } from './support.js';

/**
 * Run by identical.test.ts in processes of their own: prints the instruction set in use and the sha256 of what every
 * operation computed, as JSON.
 */
const rt = createRuntime();
const random = new Random(20240607);
const results: [string, Tensor][] = [];
const keep = (name: string, ...tensors: Tensor[]) => {
  for (const tensor of tensors) results.push([name, tensor]);
};
const bits16 = (count: number) =>
  Uint16Array.from({ length: count }, () => (random.integer(0, 1) << 15) | random.integer(0x2c00, 0x3fff));

for (const [t, n, k] of [
  [1, 70, 1030],
  [70, 100, 520],
  [200, 37, 65],
] as const) {
  const x = f32([t, k], random.normals(t * k));
  // The first rows' products, and some of their sums, lie below the least normal number, where products in bf16 have 0.
  const small = random.normals(t * k, 1e-20).fill(1e-39, 0, Math.min(k, 9));
  for (const products of ['f32', 'bf16'] as const)
    for (const dtype of ['f32', 'f16', 'bf16'] as const) {
      rt.products = products;
      const y = poisoned('f32', [t, n]);
      const w = dtype === 'f32' ? f32([n, k], random.normals(n * k)) : fromTyped(dtype, [n, k], bits16(n * k));
      ops.linear(rt, x, w, f32([n], random.normals(n)), y);
      ops.linear(rt, x, w, undefined, y, { accumulate: true });
      keep(`linear ${t} ${dtype} in ${products}`, y);
      if (dtype !== 'f32') {
        const [words, banded] = [poisoned(dtype, [Math.ceil(n / 32), Math.ceil(k / 2), 64]), poisoned('f32', [t, n])];
        ops.bandWeight(rt, w, words);
        ops.linear(rt, x, words, undefined, banded);
        keep(`banded linear ${t} ${dtype} in ${products}`, banded);
      }
      const least = poisoned('f32', [t, n]);
      ops.linear(rt, f32([t, k], small), f32([n, k], random.normals(n * k, 1e-18)), undefined, least);
      ops.linear(rt, f32([t, k], small), f32([n, k], random.normals(n * k, 1e-18)), undefined, least, {
        accumulate: true,
      });
      keep(`linear ${t} near the least normal number, in ${products}`, least);
    }
}
for (const products of ['f32', 'bf16'] as const) {
  rt.products = products;
  const [t, k] = [701, 150];
  const x = f32([t, k], random.normals(t * k));
  const h = poisoned('f64', [k, k]);
  const c = poisoned('f64', [k, k]);
  for (const zeroed of [h, c]) ops.zero(rt, zeroed);
  ops.gramAccumulate(rt, x, h, { weight: 0.3 });
  ops.crossAccumulate(rt, x, f32([t, k], random.normals(t * k)), c, { weight: 0.3 });
  const l = poisoned('f64', [k, k]);
  const info = poisoned('i32', [1]);
  ops.cast(rt, h, l);
  ops.cholesky(rt, l, info);
  const [dx, dw] = [poisoned('f32', [t, k]), poisoned('f32', [90, k])];
  const dy = f32([t, 90], random.normals(t * 90));
  ops.linearInputGradient(rt, dy, f32([90, k], random.normals(90 * k)), dx);
  ops.linearWeightGradient(rt, x, dy, dw);
  keep(`gradients of linear in ${products}`, dx, dw);
  keep(`gram in ${products}`, h);
  keep(`cross in ${products}`, c);
  keep('cholesky', l, info);
}
rt.products = 'f32';
{
  const [tokens, heads, kvHeads, headDim] = [333, 4, 2, 40];
  const q = f32([tokens, heads * headDim], random.normals(tokens * heads * headDim, 2));
  const k = f32([tokens, kvHeads * headDim], random.normals(tokens * kvHeads * headDim, 2));
  const v = f32([tokens, kvHeads * headDim], random.normals(tokens * kvHeads * headDim));
  for (const window of [0, 100]) {
    const y = poisoned('f32', [tokens, heads * headDim]);
    ops.attention(rt, q, k, v, i32([0, 40, 333]), y, { heads, kvHeads, headDim, scale: 0.158, window });
    keep(`attention ${window}`, y);
    const capped = poisoned('f32', [tokens, heads * headDim]);
    ops.attention(rt, q, k, v, i32([0, 40, 333]), capped, {
      heads,
      kvHeads,
      headDim,
      scale: 0.158,
      window,
      softCap: 4,
    });
    keep(`attention ${window} capped`, capped);
    const sunk = poisoned('f32', [tokens, heads * headDim]);
    const sinks = f32([heads], random.normals(heads));
    ops.attention(rt, q, k, v, i32([0, 40, 333]), sunk, { heads, kvHeads, headDim, scale: 0.158, window }, sinks);
    keep(`attention with sinks ${window}`, sunk);
    const both = poisoned('f32', [tokens, heads * headDim]);
    const settings = { heads, kvHeads, headDim, scale: 0.158, window, softCap: 4 };
    ops.attention(rt, q, k, v, i32([0, 40, 333]), both, settings, sinks);
    keep(`attention with sinks ${window} capped`, both);
  }
  const angles = random.normals(400 * 20);
  const positions = i32(Array.from({ length: tokens }, (_, t) => t));
  for (const style of ['half', 'interleaved'] as const)
    ops.rope(rt, q, f32([400, 20], angles.map(Math.cos)), f32([400, 20], angles.map(Math.sin)), positions, {
      heads,
      headDim,
      rotary: 40,
      style,
    });
  keep('rope', q);
}
{
  const [t, c] = [75, 211];
  const data = random.normals(t * c, 5);
  data.set([Number.POSITIVE_INFINITY, -0, 1e-42, -104, 88.9, -87.5, 3e38]);
  const x = f32([t, c], data);
  const up = f32([t, c], random.normals(t * c));
  for (const cap of [3, 50]) {
    const y = poisoned('f32', [t, c]);
    ops.softCap(rt, x, y, { scale: 0.7, cap });
    keep(`soft_cap ${cap}`, y);
  }
  const normed = poisoned('f32', [t, c]);
  ops.layernorm(rt, up, f32([3, c], random.normals(3 * c)), f32([3, c], random.normals(3 * c)), normed, {
    eps: 1e-5,
    turns: 3,
  });
  const [turned, cut] = [poisoned('f32', [c, t]), poisoned('f32', [t, 100])];
  ops.transpose(rt, up, turned);
  ops.sliceColumns(rt, up, cut, { first: 7 });
  keep('layernorm', normed);
  keep('reshape', turned, cut);
  for (const act of ['relu', 'relu2', 'quick_gelu', 'sigmoid', 'gelu_tanh'] as const) {
    const y = poisoned('f32', [t, c]);
    ops.activation(rt, x, y, { act });
    keep(`activation ${act}`, y);
  }
  for (const act of ['silu', 'gelu', 'gelu_tanh'] as const) {
    const y = poisoned('f32', [t, c]);
    ops.gatedActivation(rt, x, up, y, { act });
    keep(act, y);
  }
  for (const dtype of ['f16', 'bf16', 'f64'] as const) {
    const y = poisoned(dtype, [t, c]);
    ops.cast(rt, x, y);
    keep(`cast ${dtype}`, y);
    if (dtype === 'f64') continue;
    const back = poisoned('f32', [t, c]);
    ops.cast(rt, y, back);
    keep(`cast ${dtype} back`, back);
  }
  const logits = f32([t, c], random.normals(t * c, 4));
  const norm = poisoned('f32', [t, c]);
  ops.rmsnorm(rt, logits, f32([c], random.normals(c)), norm, { eps: 1e-6, offset: 1 });
  keep('rmsnorm', norm);
  ops.add(rt, norm, up, norm, { scale: 0.7 });
  keep('add', norm);
  const nll = poisoned('f64', [t]);
  ops.negLogLikelihood(rt, logits, i32(Array.from({ length: t }, () => random.integer(-1, c - 1))), nll);
  keep('nll', nll);
  const indices = poisoned('i32', [t, 6]);
  const weights = poisoned('f32', [t, 6]);
  ops.routeTopK(rt, logits, indices, weights, { k: 6, normalize: true });
  const rows = poisoned('i32', [t * 6]);
  const offsets = poisoned('i32', [c + 1]);
  ops.groupByExpert(rt, indices, rows, offsets, { experts: c });
  const gathered = poisoned('f32', [t * 6, c]);
  ops.gatherRows(rt, up, rows, gathered, { divide: 6 });
  const sum = poisoned('f32', [t, c]);
  ops.zero(rt, sum);
  ops.scatterAddRows(rt, gathered, rows, weights, sum, { divide: 6 });
  keep('routing', indices, weights, rows, offsets, sum);
  const wide = f32([t, 160], random.normals(t * 160, 3));
  const limited = { k: 6, normalize: true, sigmoid: true, groups: 8, topGroups: 4, topTwo: true, scale: 2.5 };
  const [chosen, shares] = [poisoned('i32', [t, 6]), poisoned('f32', [t, 6])];
  ops.routeTopK(rt, wide, chosen, shares, limited, f32([160], random.normals(160, 0.1)));
  keep('routing in groups', chosen, shares);
  const clamped = poisoned('f32', [t, c]);
  ops.clampedSwiglu(rt, x, up, clamped, { alpha: 1.702, limit: 7 });
  keep('clamped gate', clamped);
  const [parts, strided] = [f32([t, 60], new Float32Array(t * 60)), poisoned('f32', [80, t])];
  ops.copyHeads(rt, wide, parts, { heads: 4, width: 9, fromDim: 40, from: 31, toDim: 15, to: 2 });
  ops.stridedMatrix(rt, wide, strided, { first: 1, rowStep: 2, columnStep: 160 });
  keep('moved', parts, strided);
}
for (let bits = 1; bits <= 8; bits++) {
  // Two blocks of columns and a tail: rows begin anywhere in a byte.
  for (const layout of [
    tilusWeight(96, 384, bits),
    ...(bits === 4 || bits === 8 ? [marlinWeight(128, 384, bits)] : []),
  ]) {
    const rowBytes = Math.ceil((301 * bits) / 8);
    const codes = Uint8Array.from({ length: 90 * rowBytes }, () => random.integer(0, 255));
    const packed = poisoned('u8', [layout.bytes]);
    pack(rt, layout, fromTyped('u8', [90, rowBytes], codes), packed, { streamColumns: 301, pad: 2 ** bits - 1 });
    keep(`packed ${bits} bits`, packed);
  }
}
{
  const [t, n, k] = [75, 37, 384];
  const x = f32([t, k], random.normals(t * k, 3));
  const order = i32(Array.from({ length: k }, (_, j) => (j * 5) % k));
  const tables = { bits: fromTyped('u8', [3], Uint8Array.of(4, 8, 4)), clip: f32([3], Float32Array.of(1, 0.9, 0.7)) };
  const read = { codes: poisoned('i8', [t, k]), scales: poisoned('f32', [t, 3]) };
  ops.quantizeActivations(rt, x, { ...tables, order }, read);
  const back = poisoned('f32', [t, k]);
  ops.dequantizeActivations(rt, read, back);
  keep('codes of activations', read.codes, read.scales, back);
  const w = {
    codes: fromTyped(
      'i8',
      [n, k],
      Int8Array.from({ length: n * k }, () => random.integer(-8, 7)),
    ),
    scales: f32([n, 3], random.normals(n * 3)),
  };
  const y = poisoned('f32', [t, n]);
  ops.gemmW4ax(rt, read, w, f32([n], random.normals(n)), y);
  ops.gemmW4ax(rt, read, w, undefined, y, { accumulate: true });
  keep('gemm of W4Ax', y);
  const [errors, gathered, cached] = [poisoned('f64', [3, 2]), poisoned('f32', [t, k]), poisoned('f32', [t, k])];
  ops.blockErrors(rt, x, f32([k], random.normals(k)), order, errors, { bits: [4, 8], clips: [0.9, 1] });
  ops.gatherColumns(rt, x, order, gathered);
  ops.simulateKv(rt, x, i32([0, 40, 75]), cached, { bits: 4, group: 32 });
  const [most, moments] = [poisoned('f32', [k]), poisoned('f64', [k])];
  for (const zeroed of [most, moments]) ops.zero(rt, zeroed);
  ops.channelStatistics(rt, x, most, moments);
  keep('what W4Ax is planned with', errors, gathered, cached, most, moments);
}
{
  // 2:4: pairs that cost the same to a few bits must be chosen alike.
  const [n, k] = [9, 268];
  const x = f32([3 * k, k], random.normals(3 * k * k));
  const h = poisoned('f64', [k, k]);
  ops.zero(rt, h);
  ops.gramAccumulate(rt, x, h, { weight: 1 });
  const order = i32(Array.from({ length: k }, (_, i) => i));
  const [u, m] = [poisoned('f32', [k, k]), poisoned('f32', [k, k])];
  gptqOps.factor(rt, h, order, { u, m, dead: poisoned('u8', [k]), info: poisoned('f64', [3]) }, 0.01);
  const t = f32([n, k], random.normals(n * k, 0.1));
  const [scale, zero] = [
    f32(
      [n, 2],
      random.normals(n * 2, 0.001).map((v) => 0.03 + v),
    ),
    f32([n, 2], new Float32Array(n * 2)),
  ];
  const group = i32(Array.from({ length: k }, (_, i) => Math.floor((2 * i) / k)));
  for (const name of ['i4', 'f6e3m2']) {
    const type = typeParams(quantType(name));
    const [level, keepers, changed] = [poisoned('f32', [n, k]), poisoned('f32', [n, k]), poisoned('f64', [1])];
    gptqOps.sparseSolve(rt, { t, matrix: u, scale, zero, group }, { level, keep: keepers }, type);
    const params = { ...type, sweeps: 3 };
    gptqOps.sparseDescend(rt, { t, matrix: m, scale, zero, group }, { level, keep: keepers, changed }, params);
    keep(`2:4 ${name}`, level, keepers, changed);
    for (const bf16 of [false, true]) {
      const [codes, least, offset] = [poisoned('f32', [n, k]), poisoned('f32', [n, 2]), poisoned('f32', [n, 2])];
      const problem = { t, matrix: m, scale: least, zero: offset, group };
      const products = bf16 ? { bf16 } : {};
      const search = { ...type, symmetric: name === 'f6e3m2', steps: 40, ...products };
      gptqOps.clip(rt, t, m, group, { scale: least, zero: offset }, search);
      gptqOps.solve(rt, { ...problem, matrix: u }, codes, type);
      gptqOps.descend(rt, problem, codes, changed, { ...params, ...products });
      gptqOps.refit(rt, problem, codes, changed, undefined, products);
      keep(`dense ${name}${bf16 ? ', bf16' : ''}`, codes, least, offset, changed);
    }
  }
  {
    const [target, same, b, bad] = [
      poisoned('f32', [n, k]),
      poisoned('f32', [n, k]),
      poisoned('f32', [k, k]),
      poisoned('f64', [2]),
    ];
    const dead = poisoned('u8', [k]);
    ops.zero(rt, dead);
    gptqOps.target(rt, t, order, dead, { drift: h, u, alpha: 0.25 }, target, bad);
    gptqOps.correction(rt, h, order, u, b);
    gptqOps.target(rt, t, order, dead, { matrix: b, alpha: 0.25 }, same, bad);
    const sums = poisoned('f64', [2]);
    ops.moduleError(rt, t, target, h, sums);
    keep('targets', target, same, b, bad, sums);
  }
  const [pruned, kept, mask] = [
    poisoned('f32', [n, k]),
    poisoned('f32', [n, k]),
    poisoned('u8', [n, Math.ceil(k / 8)]),
  ];
  gptqOps.prune(rt, t, u, pruned, kept);
  keep('pruned', pruned, kept);
  const largest = poisoned('f32', [n, k]);
  ops.pruneMagnitude(rt, t, { pruned: largest, mask });
  keep('pruned by magnitude', largest, mask);
}
{
  // Widths of several registers, one and a part of one; rows by fours and what is left.
  const [t, heads, headDim, valueDim, top] = [90, 2, 87, 70, 11];
  const [q, k, v] = [heads * headDim, headDim, valueDim].map((width) => f32([t, width], random.normals(t * width)));
  const of = { q: q!, k: k!, starts: i32([0, t]) };
  const selected = poisoned('i32', [t, top]);
  ops.indexKeys(
    rt,
    { ...of, weights: f32([t, heads], random.normals(t * heads)) },
    selected,
    { starts: of.starts },
    {
      ...{ heads, top, block: 1, local: 0 },
    },
  );
  const [y, dy] = [
    poisoned('f32', [t, heads * valueDim]),
    f32([t, heads * valueDim], random.normals(t * heads * valueDim)),
  ];
  const p = { heads, kvHeads: 1, headDim, valueDim, scale: 0.1, choices: 1, block: 1 };
  ops.selectedAttention(rt, { ...of, v: v!, selected }, y, { starts: of.starts }, p);
  const out = { dq: poisoned('f32', q!.shape), dk: poisoned('f32', k!.shape), dv: poisoned('f32', v!.shape) };
  ops.attentionBackward(rt, { ...of, v: v!, dy, selected }, out, p);
  const dx = poisoned('f32', q!.shape);
  ops.layernormBackward(rt, q!, f32(q!.shape, random.normals(t * heads * headDim)), undefined, dx, { eps: 1e-5 });
  keep('chosen keys', selected, y, out.dq, out.dk, out.dv, dx);
}
for (const [name, group] of [
  ['i3', 32],
  ['u4', 64],
  ['f4e2m1', 32],
  ['i8', 0],
] as const) {
  const [n, k] = [140, 200];
  const groups = group ? Math.ceil(k / group) : 1;
  const type = typeParams(quantType(name));
  const codes = fromTyped(
    'u8',
    [n, k],
    Uint8Array.from({ length: n * k }, () => random.integer(0, 2 ** (type.bits as number) - 1)),
  );
  const scales = f32([n, groups], random.normals(n * groups, 0.1));
  const block = await ops.layCodes(rt, { codes, scales }, type, { n, k, group, zero: 0, global: 1 });
  for (const m of [1, 5]) {
    const y = poisoned('f32', [m, n]);
    ops.linearCodes(rt, f32([m, k], random.normals(m * k)), block, undefined, y);
    keep(`linear of ${name}, ${m} rows`, y);
  }
}
await rt.sync();
const hashes = results.map(([name, tensor]) => [name, createHash('sha256').update(tensor.bytes()).digest('hex')]);
console.log(JSON.stringify({ isa: addon().isa(), threads: rt.threads, hashes }));
