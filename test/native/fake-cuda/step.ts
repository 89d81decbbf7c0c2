// Run by cached-kernel.test.ts under the fake driver with emulated kernels: rope_append and add_norm by the "device" and by the CPU. Prints
// the largest differences of each case.
import {
  createRuntime,
  type DType,
  fromTyped,
  type NativeRuntime,
  readTyped,
  type Tensor,
} from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { decodeBf16, decodeF16, Random } from '../support.js';

const cpu = createRuntime({ threads: 2 });
const cuda = createRuntime({ device: 'cuda:0' });

/** Sixteenths below 8, which every type holds. */
const sixteenths = (random: Random, count: number) => random.normals(count).map((value) => Math.round(value * 16) / 16);
async function numbers(rt: NativeRuntime, dtype: DType, shape: readonly number[], data: Float32Array): Promise<Tensor> {
  const there = cpu.allocate(dtype, shape);
  ops.cast(cpu, fromTyped('f32', shape, data), there);
  await cpu.sync();
  return rt.upload(there);
}
async function read(rt: NativeRuntime, tensor: Tensor): Promise<Float32Array> {
  const raw = await readTyped<Float32Array | Uint16Array>(rt, tensor);
  if (tensor.dtype === 'f32') return Float32Array.from(raw);
  return Float32Array.from(raw, tensor.dtype === 'f16' ? decodeF16 : decodeBf16);
}
/** NaN where the two are, is not a number. */
function most(a: Float32Array, b: Float32Array, over: (value: number) => number = () => 1): number {
  return a.reduce((worst, value, i) => {
    const off = Math.abs(value - b[i]!) / over(value);
    return Number.isNaN(off) || off > worst ? off : worst;
  }, 0);
}

type Form = readonly [kept: DType, x: DType, y: DType, heads: number, kvHeads: number, headDim: number, rotary: number];

/** Queries, keys and values as columns of one matrix. */
async function turned(
  [kept, x, y, heads, kvHeads, headDim, rotary]: Form,
  style: 'half' | 'interleaved',
  normed = false,
) {
  const random = new Random(headDim + rotary);
  const [slots, rows] = [36, 4];
  const width = (heads + 2 * kvHeads) * headDim;
  // More sequences than a warp has lanes, one of them without new tokens, in slots in another order.
  const fresh = Array.from({ length: 36 }, (_, s): number => (s === 3 ? 0 : s % 6 === 0 ? 2 : 1));
  const starts = [0, ...fresh.map((_, s) => fresh.slice(0, s + 1).reduce((sum, count) => sum + count, 0))];
  const tokens = starts.at(-1)!;
  const given = sixteenths(random, tokens * width);
  const before = sixteenths(random, slots * rows * kvHeads * headDim);
  const weight = sixteenths(random, headDim);
  const tables = [0, 1].map(() => random.normals((9 * rotary) / 2));
  const results: Float32Array[][] = [];
  for (const rt of [cpu, cuda]) {
    const ints = (list: readonly number[]) => rt.upload(fromTyped('i32', [list.length], Int32Array.from(list)));
    const [cos, sin] = tables.map((table) => rt.upload(fromTyped('f32', [9, rotary / 2], table))) as [Tensor, Tensor];
    const whole = await numbers(rt, rt === cpu ? 'f32' : x, [tokens, width], given);
    const out = await numbers(
      rt,
      y,
      [tokens, heads * headDim],
      new Float32Array(tokens * heads * headDim).fill(Number.NaN),
    );
    const shape = [slots, rows, kvHeads * headDim];
    const [keys, values] = [await numbers(rt, kept, shape, before), await numbers(rt, kept, shape, before)];
    const step = {
      starts: ints(starts),
      slots: ints(fresh.map((_, s) => (s * 5 + 3) % slots)),
      totals: ints(fresh.map((count, s) => Math.min(rows, count + (s % 3)))),
    };
    const positions = ints(Array.from({ length: tokens }, (_, t) => (t * 7) % 9));
    const firsts = { qFirst: 0, kFirst: heads * headDim, vFirst: (heads + kvHeads) * headDim };
    const p = { heads, kvHeads, headDim, ...firsts };
    const rotation = { cos, sin, positions, rotary, style };
    const norms = normed && {
      q: await numbers(rt, 'f32', [headDim], weight),
      k: await numbers(rt, 'f32', [headDim], weight),
      eps: 1e-6,
      offset: 1,
    };
    ops.ropeAppend(
      rt,
      { q: whole, k: whole, v: whole },
      step,
      { y: out, keys, values },
      p,
      rotation,
      norms || undefined,
    );
    results.push([await read(rt, out), await read(rt, keys), await read(rt, values)]);
  }
  return Math.max(...results[0]!.map((side, i) => most(side, results[1]![i]!)));
}

for (const form of [
  ['f16', 'f16', 'f16', 6, 2, 64, 64],
  ['f16', 'bf16', 'f16', 2, 1, 40, 12],
  ['bf16', 'f32', 'f32', 1, 1, 256, 256],
  ['f32', 'f32', 'f32', 4, 2, 18, 18],
  ['f16', 'bf16', 'f16', 2, 1, 512, 128],
] as const)
  for (const style of ['half', 'interleaved'] as const)
    console.log(`${form[0]} rope_append ${await turned(form, style)}`);

// Of numbers up to some 20, in fp32.
for (const form of [
  ['f32', 'bf16', 'f32', 4, 2, 64, 64],
  ['f32', 'f32', 'f32', 2, 1, 18, 12],
] as const)
  console.log(`f32 normed ${await turned(form, 'half', true)}`);

/** Of the sums, and of their norms over 1 + what those are. */
async function summed(y: DType, x: DType, rows: number, width: number, kind: 'rms' | 'layer') {
  const random = new Random(width);
  const shape = [rows, width];
  const [h, more] = [sixteenths(random, rows * width), sixteenths(random, rows * width)];
  const [weight, bias] = [sixteenths(random, width), sixteenths(random, width)];
  const results: Float32Array[][] = [];
  for (const rt of [cpu, cuda]) {
    const sums = await numbers(rt, 'f32', shape, h);
    const empty = new Float32Array(rows * width).fill(Number.NaN);
    const normed = await numbers(rt, rt === cpu ? 'f32' : x, shape, empty);
    const [gain, shift] = [await numbers(rt, 'f32', [width], weight), await numbers(rt, 'f32', [width], bias)];
    const p = { kind, eps: 1e-5, scale: 0.5 };
    ops.addNorm(rt, sums, await numbers(rt, y, shape, more), gain, kind === 'layer' ? shift : undefined, normed, p);
    results.push([await read(rt, sums), await read(rt, normed)]);
  }
  const [[sums, norms], [others, normed]] = results as [[Float32Array, Float32Array], [Float32Array, Float32Array]];
  return [most(sums, others), most(norms, normed, (value) => 1 + Math.abs(value))];
}

for (const [y, x, rows, width] of [
  ['f32', 'f32', 2, 45],
  ['f32', 'bf16', 1, 640],
  ['f16', 'f16', 2, 4352],
  ['bf16', 'bf16', 2, 31],
] as const)
  for (const kind of ['rms', 'layer'] as const) {
    const [sums, norms] = await summed(y, x, rows, width, kind);
    console.log(`f32 sums ${sums}`);
    console.log(`${x} add_norm ${norms}`);
  }
