// Run by experts-kernel.test.ts under the fake driver with emulated kernels: gemm_experts, and what sorts rows by expert and adds them up
// again, by the "device" and by the CPU. Prints how far apart products are in units of the last place of the largest result, whether rows
// are the same, and what is refused.
import {
  createRuntime,
  type DType,
  fromTyped,
  type NativeRuntime,
  readTyped,
  type Tensor,
} from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import type { ExpertGating } from '../../../native/packed-ops.js';
import { quantType, typeParams } from '../../../src/core/quant-type.js';
import { decodeBf16, decodeF16, Random } from '../support.js';

const cpu = createRuntime({ threads: 2 });
const cuda = createRuntime({ device: 'cuda:0' });
const POISON = 0x7e01;

interface Case {
  readonly type: string;
  readonly x: 'f16' | 'bf16';
  readonly counts: readonly number[];
  readonly n: number;
  readonly k: number;
  readonly group: number;
  readonly zeros?: boolean;
  readonly tokens?: 16 | 64;
  readonly gating?: ExpertGating;
}

/** Rows of y on both, as bits. */
async function products(
  { type, x, counts, n, k, group, zeros = false, tokens, gating }: Case,
  offsets: readonly number[],
) {
  const experts = counts.length;
  const { bits } = quantType(type);
  const rows = counts.reduce((all, count) => all + count, 3);
  const [down, across, groups] = [
    Math.ceil(n / 32) * (gating ? 2 : 1),
    Math.ceil(k / 128),
    group ? Math.ceil(k / group) : 1,
  ];
  const random = new Random(n + k);
  const bytes = (shape: readonly number[]) =>
    fromTyped(
      'u8',
      shape,
      Uint8Array.from({ length: shape.reduce((a, b) => a * b) }, () => random.integer(0, 255)),
    );
  const codes = bytes([experts, down, across, 512 * bits]);
  const points = bytes([experts, down, groups, 32]);
  const numbers = async (shape: readonly number[], size: number) => {
    const there = cpu.allocate(x, shape);
    const values = random.normals(shape.reduce((a, b) => a * b)).map((value) => size * (1 + Math.abs(value)));
    ops.cast(cpu, fromTyped('f32', shape, values), there);
    await cpu.sync();
    return there;
  };
  const [inputs, scales, bias] = [
    await numbers([rows, k], 1),
    await numbers([experts, down, groups, 32], gating ? 1 / 4096 : 1 / 64),
    await numbers([experts, gating ? 32 * down : n], 1),
  ];
  const run = async (rt: NativeRuntime) => {
    const y = rt.upload(fromTyped(x, [rows, n], new Uint16Array(rows * n).fill(POISON)));
    const there = (x: Tensor, p: Parameters<typeof ops.interleaveGates>[3]) => {
      const given = rt.upload(x);
      if (!gating) return given;
      const y = rt.allocate(x.dtype, x.shape);
      ops.interleaveGates(rt, given, y, p);
      return y;
    };
    const weight = {
      weights: there(codes, { of: 'words', bits }),
      scales: there(scales, { of: 'sides' }),
      ...(zeros && { zeros: there(points, { of: 'sides' }) }),
    };
    const settings = { groupSize: group, zero: 0, ...(tokens && { tokens }), ...gating };
    const where = rt.upload(fromTyped('i32', [experts + 1], Int32Array.from(offsets)));
    ops.gemmExperts(
      rt,
      rt.upload(inputs),
      where,
      weight,
      there(bias, { of: 'rows' }),
      y,
      typeParams(quantType(type)),
      settings,
    );
    return readTyped<Uint16Array>(rt, y);
  };
  return [await run(cpu), await run(cuda)] as const;
}

const decoded = (dtype: DType, bits: number) => (dtype === 'f16' ? decodeF16(bits) : decodeBf16(bits));

for (const each of [
  { type: 'u4', x: 'f16', counts: [0, 1, 15, 16, 17, 5], n: 70, k: 264, group: 32, zeros: true },
  { type: 'i4', x: 'f16', counts: [100, 0, 1, 70], n: 290, k: 520, group: 128 },
  { type: 'i4', x: 'f16', counts: [3, 20], n: 33, k: 392, group: 0, tokens: 64 },
  { type: 'f6e3m2', x: 'bf16', counts: [0, 30, 2, 0], n: 40, k: 128, group: 64 },
  { type: 'u4', x: 'f16', counts: [260], n: 296, k: 200, group: 64 },
  {
    type: 'u4',
    x: 'f16',
    counts: [0, 1, 15, 16, 17, 5],
    n: 70,
    k: 264,
    group: 32,
    zeros: true,
    gating: { gate: 'silu' },
  },
  {
    type: 'i4',
    x: 'f16',
    counts: [100, 0, 1, 70],
    n: 145,
    k: 520,
    group: 128,
    gating: { gate: 'clamped', alpha: 1.702, limit: 7 },
  },
  { type: 'f6e3m2', x: 'bf16', counts: [0, 30, 2, 0], n: 40, k: 128, group: 64, gating: { gate: 'gelu_tanh' } },
  { type: 'u4', x: 'f16', counts: [260], n: 148, k: 200, group: 64, gating: { gate: 'silu', limit: 9 } },
] as const satisfies readonly Case[]) {
  const offsets = [2];
  for (const count of each.counts) offsets.push(offsets.at(-1)! + count);
  const [want, got] = await products(each, offsets);
  let [worst, most] = [0, 0];
  for (const [i, bits] of want.entries()) {
    if ((bits === POISON) !== (got[i] === POISON)) worst = Number.POSITIVE_INFINITY;
    if (bits === POISON) continue;
    const value = decoded(each.x, bits);
    most = Math.max(most, Math.abs(value));
    worst = Math.max(worst, Math.abs(value - decoded(each.x, got[i]!)));
  }
  console.log(
    `${each.type} of ${each.counts.length} experts: ${worst / most / (each.x === 'f16' ? 2 ** -11 : 2 ** -8)}`,
  );
}

const small: Case = { type: 'u4', x: 'f16', counts: [2, 2], n: 32, k: 128, group: 128 };
for (const [runtime, offsets] of [
  [cuda, [0, 5, 4]],
  [cuda, [0, 2, 8]],
] as const) {
  const y = runtime.allocate('f16', [7, 32]);
  const at = (dtype: DType, shape: readonly number[]) => runtime.allocate(dtype, shape);
  const where = runtime.upload(fromTyped('i32', [3], Int32Array.from(offsets)));
  const weight = { weights: at('u8', [2, 1, 1, 2048]), scales: at('f16', [2, 1, 1, 32]) };
  const type = typeParams(quantType(small.type));
  ops.gemmExperts(runtime, at('f16', [7, 128]), where, weight, undefined, y, type, { groupSize: 128 });
  await runtime.sync().then(
    () => console.log('taken'),
    (error: Error & { code: string }) => console.log(`refused ${error.code}: ${error.message}`),
  );
}

// A strip of 20 packed blocks is wider than a block of the wide kernel.
{
  const at = (dtype: DType, shape: readonly number[]) => cuda.allocate(dtype, shape);
  const where = cuda.upload(fromTyped('i32', [3], Int32Array.of(0, 2, 4)));
  const weight = { weights: at('u8', [2, 20, 1, 2048]), scales: at('f16', [2, 20, 1, 32]) };
  const settings = { groupSize: 128, kernel: 'wide', width: 20 as 16 } as const;
  ops.gemmExperts(
    cuda,
    at('f16', [4, 128]),
    where,
    weight,
    undefined,
    at('f16', [4, 640]),
    typeParams(quantType('u4')),
    settings,
  );
  await cuda.sync().then(
    () => console.log('taken'),
    (error: Error & { code: string }) => console.log(`refused ${error.code}: ${error.message}`),
  );
}

/** Routed rows grouped, gathered and added up again, in f32: offsets, rows, sums. */
async function routed(rt: NativeRuntime, [tokens, k, experts, width]: readonly [number, number, number, number]) {
  const random = new Random(tokens * experts + k);
  const ints = (shape: readonly number[], values: Int32Array) => rt.upload(fromTyped('i32', shape, values));
  const floats = (shape: readonly number[]) => {
    const count = shape.reduce((a, b) => a * b, 1);
    // Sixteenths: products and sums of them are exact, whether they fuse or not.
    return rt.upload(
      fromTyped(
        'f32',
        shape,
        random.normals(count).map((value) => Math.round(value * 16) / 16),
      ),
    );
  };
  // The last expert gets nothing.
  const chosen = Int32Array.from({ length: tokens * k }, () => random.integer(0, Math.max(0, experts - 2)));
  const offsets = rt.allocate('i32', [experts + 1]);
  let rows = rt.allocate('i32', [tokens * k]);
  if (tokens * k <= 1024) ops.groupByExpert(rt, ints([tokens, k], chosen), rows, offsets, { experts });
  else {
    // The kernels that group more are not emulated.
    const order = [...chosen.keys()].sort((a, b) => chosen[a]! - chosen[b]! || a - b);
    rows = ints([tokens * k], Int32Array.from(order));
    ops.zero(rt, offsets);
  }
  const gathered = rt.allocate('f32', [tokens * k, width]);
  ops.gatherRows(rt, floats([tokens, width]), rows, gathered, { divide: k });
  const y = floats([tokens, width]);
  ops.scatterAddRows(rt, gathered, rows, floats([tokens, k]), y, { divide: k });
  const parts = [await readTyped<Int32Array>(rt, offsets), await readTyped<Int32Array>(rt, rows)];
  return [...parts.flatMap((part) => [...part]), ...(await readTyped<Float32Array>(rt, y))];
}

for (const shape of [
  [1, 8, 128, 300],
  [33, 4, 70, 40],
  [128, 8, 9, 17],
  [5, 1, 1, 513],
  [210, 5, 6, 20],
] as const) {
  const [want, got] = [await routed(cpu, shape), await routed(cuda, shape)];
  console.log(`rows ${shape}: ${want.length === got.length && want.every((value, i) => value === got[i])}`);
}
for (const wrong of [-1, 3]) {
  const indices = cuda.upload(fromTyped('i32', [2, 2], Int32Array.of(0, 1, wrong, 2)));
  ops.groupByExpert(cuda, indices, cuda.allocate('i32', [4]), cuda.allocate('i32', [4]), { experts: 3 });
  await cuda.sync().then(
    () => console.log('taken'),
    (error: Error & { code: string }) => console.log(`refused ${error.code}: ${error.message}`),
  );
}
