import { kvKernelForm, kvPageBytes, kvPages, kvPageUnit } from '../../formats/kv/kernels.js';
import { type NativeRuntime, type Tensor, type TimedCall, uploadTyped } from '../../native/binding.js';
import type { KvForm } from '../../native/kv-ops.js';
import { LpqError } from '../../src/core/error.js';
import { type Noise, rotation } from '../kernels/operands.js';
import type { AttentionCase } from './cases.js';

/** The calls of one pass, and how often the measured work is in it. */
export interface Pass {
  readonly calls: TimedCall[];
  readonly times: number;
  /** Bytes that it moves at least, each time. */
  readonly bytes: number;
  dispose(): void;
}

/** A layer's cache as kernels read it, in pages as small as they come. Throws LPQ_USAGE for a scheme that no kernel reads. */
export function formOf({ scheme, kvHeads, headDim }: AttentionCase): KvForm {
  const form = kvKernelForm(scheme, { kvHeads, headDim, pageTokens: 0 });
  if (typeof form === 'string') throw new LpqError('LPQ_USAGE', form);
  return { ...form, pageTokens: kvPageUnit(form) };
}

/** Random pages: codes at random, scales and zeros f16 of a sane size. A block holds both, so all of it is such numbers. */
function pagesOf(noise: Noise, form: KvForm, count: number): Tensor[] {
  const sizes = kvPageBytes(form);
  return sizes.map((bytes, i) =>
    noise.fill(sizes.length > 1 && i % 2 === 0 ? 'codes' : 'numbers', 'u8', [count, bytes], i + 1),
  );
}

/** 0 .. count - 1 in an order that jumps about. */
function shuffled(count: number): number[] {
  const order = Array.from({ length: count }, (_, i) => i);
  let state = 0x9e3779b9;
  for (let i = count - 1; i > 0; i--) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    const j = Math.floor((state / 2 ** 32) * (i + 1));
    [order[i], order[j]] = [order[j] as number, order[i] as number];
  }
  return order;
}

const ints = (rt: NativeRuntime, count: number, value: number): Tensor =>
  uploadTyped(rt, 'i32', [count], new Int32Array(count).fill(value));

const disposer = (tensors: readonly Tensor[]) => () => {
  for (const tensor of tensors) tensor.dispose();
};

/** What one call of kv_decode reads: a table of pages, and exact tokens. */
type Reading = readonly [table: Tensor, keys: Tensor, values: Tensor];

/** Decode attention over `readings` in turn; `lengths` and `tails`: packed and exact tokens of every sequence. */
function attentionPass(
  rt: NativeRuntime,
  noise: Noise,
  { sequences, heads, headDim }: AttentionCase,
  form: KvForm,
  pages: readonly Tensor[],
  readings: readonly Reading[],
  [lengths, tails]: readonly [Tensor, Tensor],
  { products, bytes }: { readonly products: number; readonly bytes: number },
): Pass {
  const q = noise.fill('numbers', 'f16', [sequences, heads * headDim], 99);
  const y = rt.allocate('f16', [sequences, heads * headDim]);
  const params = { ...form, heads, scale: headDim ** -0.5 };
  return {
    calls: Array.from({ length: products }, (_, i) => {
      const [table, keys, values] = readings[i % readings.length] as Reading;
      const inputs = [q, ...kvPages(pages), table, lengths, keys, values, tails];
      return { op: 'kv_decode', inputs, outputs: [y], params };
    }),
    times: products,
    bytes: bytes + 4 * sequences * heads * headDim,
    dispose: disposer([...new Set([...pages, lengths, tails, q, y, ...readings.flat()])]),
  };
}

/** Attention over packed pages in random order and a tail; caches rotate past L2. */
export function decodePass(rt: NativeRuntime, noise: Noise, one: AttentionCase, l2Bytes: number): Pass {
  const form = formOf(one);
  const { sequences, tokens, kvHeads, headDim, tail } = one;
  const each = tokens / form.pageTokens;
  const cacheBytes = kvPageBytes(form).reduce((sum, bytes) => sum + bytes, 0) * sequences * each;
  const { copies, products } = rotation(cacheBytes, l2Bytes);
  const width = kvHeads * headDim;
  const pages = pagesOf(noise, form, copies * sequences * each);
  const order = shuffled(sequences * each);
  const readings = Array.from({ length: copies }, (_, i): Reading => {
    const table = Int32Array.from(order, (page) => page + i * order.length);
    const [keys, values] = exactTokens(noise, [sequences, Math.max(1, tail), width], i);
    return [uploadTyped(rt, 'i32', [sequences, each], table), keys, values];
  });
  const counts = [ints(rt, sequences, tokens), ints(rt, sequences, tail)] as const;
  const bytes = cacheBytes + 4 * sequences * tail * width;
  return attentionPass(rt, noise, one, form, pages, readings, counts, { products, bytes });
}

/** The same kernel where no token is packed: attention over f16. */
export function exactPass(rt: NativeRuntime, noise: Noise, one: AttentionCase, l2Bytes: number): Pass {
  const { sequences, kvHeads, headDim } = one;
  const tokens = one.tokens + one.tail;
  const width = kvHeads * headDim;
  const bytes = 4 * sequences * tokens * width;
  const { copies, products } = rotation(bytes, l2Bytes);
  const form = formOf(one);
  const table = uploadTyped(rt, 'i32', [sequences, 1], new Int32Array(sequences));
  const readings = Array.from({ length: copies }, (_, i): Reading => {
    return [table, ...exactTokens(noise, [sequences, tokens, width], i)];
  });
  const counts = [ints(rt, sequences, 0), ints(rt, sequences, tokens)] as const;
  return attentionPass(rt, noise, one, form, pagesOf(noise, form, 1), readings, counts, { products, bytes });
}

/** Keys and values of so many tokens, others for every copy. */
function exactTokens(noise: Noise, shape: readonly number[], copy: number): [keys: Tensor, values: Tensor] {
  const of = (side: number) => noise.fill('numbers', 'f16', shape, 2 * copy + side);
  return [of(0), of(1)];
}

/** Tokens of a cycle: as many as a tail holds; where every token is packed, as a page holds. */
export const cycleOf = (one: AttentionCase): number => one.scheme.residual || formOf(one).pageTokens;

/** A cycle of appended tokens: every sequence's tail fills up, and is packed once. `passes`: how often it may run. */
export function appendPass(rt: NativeRuntime, noise: Noise, one: AttentionCase, passes: number): Pass {
  const form = formOf(one);
  const { sequences, kvHeads, headDim } = one;
  const cycle = cycleOf(one);
  const width = kvHeads * headDim;
  // The cache grows from pass to pass, into the same few pages again and again.
  const each = Math.ceil(cycle / form.pageTokens);
  const pages = pagesOf(noise, form, sequences * each);
  const turns = passes + 8;
  const table = uploadTyped(
    rt,
    'i32',
    [sequences, turns * each],
    Int32Array.from({ length: sequences * turns * each }, (_, i) => Math.floor(i / (turns * each)) * each + (i % each)),
  );
  const [lengths, tails] = [ints(rt, sequences, 0), ints(rt, sequences, 0)];
  const exact = [1, 2].map((shift) =>
    noise.fill('numbers', 'f16', [sequences, Math.max(1, one.scheme.residual), width], shift),
  );
  const token = [3, 4].map((shift) => noise.fill('numbers', 'f16', [sequences, width], shift));
  return {
    calls: Array.from({ length: cycle }, () => ({
      op: 'kv_append',
      inputs: [...token, table],
      outputs: [...kvPages(pages), lengths, tails, ...exact],
      params: { ...form },
    })),
    times: cycle,
    bytes: 8 * sequences * width,
    dispose: disposer([...pages, table, lengths, tails, ...exact, ...token]),
  };
}

/** All packed tokens of one sequence, as a prompt's. */
export function packPass(rt: NativeRuntime, noise: Noise, one: AttentionCase): Pass {
  const form = formOf(one);
  const { tokens, kvHeads, headDim } = one;
  const count = tokens / form.pageTokens;
  const pages = pagesOf(noise, form, count);
  const table = uploadTyped(rt, 'i32', [count], Int32Array.from(shuffled(count)));
  const [k, v] = [1, 2].map((shift) => noise.fill('numbers', 'f16', [tokens, kvHeads * headDim], shift)) as [
    Tensor,
    Tensor,
  ];
  return {
    calls: [{ op: 'kv_pack', inputs: [k, v, table], outputs: [...kvPages(pages)], params: { ...form } }],
    times: 1,
    bytes: 2 * k.byteLength + kvPageBytes(form).reduce((sum, bytes) => sum + bytes, 0) * count,
    dispose: disposer([...pages, table, k, v]),
  };
}
