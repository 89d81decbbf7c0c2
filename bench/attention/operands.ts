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

/** Attention over packed pages in random order and a tail; caches rotate past L2. */
export function decodePass(rt: NativeRuntime, noise: Noise, one: AttentionCase, l2Bytes: number): Pass {
  const form = formOf(one);
  const { sequences, tokens, heads, kvHeads, headDim, tail } = one;
  const each = tokens / form.pageTokens;
  const cacheBytes = kvPageBytes(form).reduce((sum, bytes) => sum + bytes, 0) * sequences * each;
  const { copies, products } = rotation(cacheBytes, l2Bytes);
  const width = kvHeads * headDim;
  const pages = pagesOf(noise, form, copies * sequences * each);
  const order = shuffled(sequences * each);
  const room = Math.max(1, tail);
  const [lengths, tails] = [ints(rt, sequences, tokens), ints(rt, sequences, tail)];
  const [q, y] = [
    noise.fill('numbers', 'f16', [sequences, heads * headDim], 99),
    rt.allocate('f16', [sequences, heads * headDim]),
  ];
  const sets = Array.from({ length: copies }, (_, i) => ({
    table: uploadTyped(
      rt,
      'i32',
      [sequences, each],
      Int32Array.from(order, (page) => page + i * order.length),
    ),
    keys: noise.fill('numbers', 'f16', [sequences, room, width], 2 * i),
    values: noise.fill('numbers', 'f16', [sequences, room, width], 2 * i + 1),
  }));
  const params = { ...form, heads, scale: headDim ** -0.5 };
  return {
    calls: Array.from({ length: products }, (_, i) => {
      const { table, keys, values } = sets[i % copies] as (typeof sets)[number];
      return {
        op: 'kv_decode',
        inputs: [q, ...kvPages(pages), table, lengths, keys, values, tails],
        outputs: [y],
        params,
      };
    }),
    times: products,
    bytes: cacheBytes + 4 * sequences * (tail * width + heads * headDim),
    dispose: disposer([
      ...pages,
      lengths,
      tails,
      q,
      y,
      ...sets.flatMap(({ table, keys, values }) => [table, keys, values]),
    ]),
  };
}

/** The same kernel where no token is packed: attention over f16. */
export function exactPass(rt: NativeRuntime, noise: Noise, one: AttentionCase, l2Bytes: number): Pass {
  const form = formOf(one);
  const { sequences, heads, kvHeads, headDim } = one;
  const tokens = one.tokens + one.tail;
  const width = kvHeads * headDim;
  const bytes = 4 * sequences * tokens * width;
  const { copies, products } = rotation(bytes, l2Bytes);
  const pages = pagesOf(noise, form, 1);
  const [table, lengths, tails] = [
    uploadTyped(rt, 'i32', [sequences, 1], new Int32Array(sequences)),
    ints(rt, sequences, 0),
    ints(rt, sequences, tokens),
  ];
  const [q, y] = [
    noise.fill('numbers', 'f16', [sequences, heads * headDim], 99),
    rt.allocate('f16', [sequences, heads * headDim]),
  ];
  const sets = Array.from({ length: copies }, (_, i) =>
    [0, 1].map((side) => noise.fill('numbers', 'f16', [sequences, tokens, width], 2 * i + side)),
  ) as [Tensor, Tensor][];
  const params = { ...form, heads, scale: headDim ** -0.5 };
  return {
    calls: Array.from({ length: products }, (_, i) => {
      const [keys, values] = sets[i % copies] as [Tensor, Tensor];
      return {
        op: 'kv_decode',
        inputs: [q, ...kvPages(pages), table, lengths, keys, values, tails],
        outputs: [y],
        params,
      };
    }),
    times: products,
    bytes: bytes + 4 * sequences * heads * headDim,
    dispose: disposer([...pages, table, lengths, tails, q, y, ...sets.flat()]),
  };
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
