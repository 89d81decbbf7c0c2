// Run by cached-kernel.test.ts under the fake driver with emulated kernels: tokens kept and attended to by the "device" and by the CPU.
// Prints the largest difference of each case.
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

/** Sequences of a step: slot, tokens before, new ones. */
const STEPS = [
  [
    [1, 0, 19],
    [0, 0, 2],
  ],
  [
    [0, 2, 1],
    [1, 19, 1],
  ],
] as const;

async function largest(dtype: DType, heads: number, kvHeads: number, headDim: number, sinks: boolean): Promise<number> {
  const random = new Random(headDim);
  const width = kvHeads * headDim;
  const made = new Map<NativeRuntime, Float32Array[]>();
  // Multiples of 1/16, which every type holds.
  const numbers = (count: number) => random.normals(count).map((value) => Math.round(value * 16) / 16);
  const inputs = STEPS.map((step) => {
    const tokens = step.reduce((sum, [, , count]) => sum + count, 0);
    return { tokens, q: numbers(tokens * heads * headDim), k: numbers(tokens * width), v: numbers(tokens * width) };
  });
  const sink = numbers(heads);
  for (const rt of [cpu, cuda]) {
    // The CPU computes in f32 over what the device keeps in 16 bits.
    const kept: DType = dtype;
    const out: DType = rt === cpu ? 'f32' : dtype;
    const put = (type: DType, shape: readonly number[], data: ArrayBufferView): Tensor =>
      rt.upload(fromTyped(type, shape, data));
    const bytes = 2 * 24 * width;
    const zeros = kept === 'f32' ? new Float32Array(bytes) : new Uint16Array(bytes);
    const [keys, values] = [0, 1].map(() => put(kept, [2, 24, width], zeros)) as [Tensor, Tensor];
    const results: Float32Array[] = [];
    for (const [i, step] of STEPS.entries()) {
      const { tokens, q, k, v } = inputs[i]!;
      const ends = step.map((_, s) => step.slice(0, s + 1).reduce((sum, [, , count]) => sum + count, 0));
      const ints = (list: readonly number[]) => put('i32', [list.length], Int32Array.from(list));
      const at = {
        starts: ints([0, ...ends]),
        slots: ints(step.map(([slot]) => slot)),
        totals: ints(step.map(([, past, count]) => past + count)),
      };
      ops.cacheAppend(rt, put('f32', [tokens, width], k), put('f32', [tokens, width], v), at, keys, values);
      const empty = new Uint8Array(tokens * heads * headDim * (out === 'f32' ? 4 : 2)).fill(0xff);
      const y = put(out, [tokens, heads * headDim], empty);
      const cut = rt === cuda ? { splits: 2 } : {};
      const p = { heads, kvHeads, headDim, scale: 0.25, window: 11, most: 19, longest: 20, ...cut };
      ops.cachedAttention(
        rt,
        put('f32', [tokens, heads * headDim], q),
        keys,
        values,
        at,
        y,
        p,
        sinks ? put('f32', [heads], sink) : undefined,
      );
      const raw = await readTyped<Float32Array | Uint16Array>(rt, y);
      const decode = out === 'f32' ? (bits: number) => bits : out === 'f16' ? decodeF16 : decodeBf16;
      results.push(Float32Array.from(raw, decode));
    }
    made.set(rt, results);
  }
  const [a, b] = [made.get(cpu)!, made.get(cuda)!];
  return Math.max(...a.flatMap((row, i) => [...row].map((value, j) => Math.abs(value - b[i]![j]!))));
}

/** Sequences that are not those of the tokens, for the kernel of tensor cores and for the plain one. */
async function refusal(dtype: DType, starts: readonly number[], most: number): Promise<string> {
  const sequences = starts.length - 1;
  const ints = (list: readonly number[]) => cuda.upload(fromTyped('i32', [list.length], Int32Array.from(list)));
  const [q, y] = [0, 1].map(() => cuda.allocate(dtype, [2, 64])) as [Tensor, Tensor];
  const [keys, values] = [0, 1].map(() => cuda.allocate(dtype, [1, 4, 64])) as [Tensor, Tensor];
  const each = (value: number) => ints(Array.from({ length: sequences }, () => value));
  const at = { starts: ints(starts), slots: each(0), totals: each(2) };
  ops.cachedAttention(cuda, q, keys, values, at, y, { heads: 1, kvHeads: 1, headDim: 64, scale: 1, most, longest: 4 });
  return cuda.sync().then(
    () => 'nothing',
    (error: { code: string }) => error.code,
  );
}

for (const [dtype, heads, kvHeads, headDim, sinks] of [
  ['f16', 4, 2, 64, false],
  ['f16', 6, 1, 96, true],
  ['bf16', 2, 2, 128, false],
  ['f32', 4, 2, 20, true],
  ['bf16', 4, 1, 12, false],
] as const)
  console.log(`${dtype} ${headDim} ${await largest(dtype, heads, kvHeads, headDim, sinks)}`);

for (const dtype of ['f16', 'f32'] as const)
  for (const [starts, most] of [
    [[0, 1], 2],
    [[1, 2], 2],
    [[0], 2],
    [[0, 2], 0],
  ] as const)
    console.log(`refused ${dtype} ${JSON.stringify(starts)} ${most}: ${await refusal(dtype, starts, most)}`);

/** Many queries over a packed cache take what says how one is shared out, and integers that begin anywhere. */
async function many(): Promise<string> {
  const of = (dtype: DType, shape: readonly number[]) => cuda.allocate(dtype, shape);
  const ints = cuda.upload(fromTyped('i32', [4], Int32Array.of(9, 0, 128, 0)));
  const [table, lengths, tails] = [1, 2, 3].map((at) => ints.view(at === 1 ? [1, 1] : [1], at)) as [
    Tensor,
    Tensor,
    Tensor,
  ];
  const pages = [4096, 256, 4096, 512].map((bytes) => of('u8', [1, bytes])) as [Tensor, Tensor, Tensor, Tensor];
  const [tailKeys, tailValues] = [of('f16', [1, 8, 64]), of('f16', [1, 8, 64])];
  const form = { bits: 4, headDim: 64, kvHeads: 1, keyGroup: 128, valueGroup: 64, pageTokens: 128 };
  const how = { heads: 2, scale: 1, queries: 3, splits: 2, warps: 4 };
  const cache = { pages, table, lengths, tails, tailKeys, tailValues };
  ops.kvDecode(cuda, of('f16', [3, 128]), cache, of('f16', [3, 128]), { ...form, ...how });
  return cuda.sync().then(
    () => 'taken',
    (error: Error) => error.message,
  );
}
console.log(`many queries: ${await many()}`);
