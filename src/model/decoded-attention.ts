import { KV_FORMS } from '../../formats/kv/forms.js';
import { kvKernelForm, kvPageBytes, kvPages, kvPageUnit } from '../../formats/kv/kernels.js';
import { type NativeRuntime, type Tensor, uploadTyped } from '../../native/binding.js';
import type { KvForm } from '../../native/kv-ops.js';
import { ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import type { Batch } from './program.js';
import type { KvScheme } from './source.js';

type AttentionParams = Parameters<typeof ops.attention>[6];
type Heads = Pick<AttentionParams, 'kvHeads' | 'headDim' | 'window' | 'softCap'>;

/** Why ops.kvDecode cannot compute this attention over a cache of this scheme, of sequences of `longest` tokens; undefined where it can. */
export function decodingObstacle(scheme: KvScheme, p: Heads, longest = Number.POSITIVE_INFINITY): string | undefined {
  const form = formOf(scheme, p);
  if (typeof form === 'string') return form;
  if (KV_FORMS[scheme.form].tail && scheme.residual === 0)
    return 'a cache of whole blocks without an exact tail can only be simulated';
  if (p.window !== undefined && p.window > 0 && p.window < longest) return 'no kernel skips tokens before a window';
  return p.softCap !== undefined && p.softCap > 0 ? 'no kernel caps scores' : undefined;
}

/** In pages as small as they come. */
function formOf(scheme: KvScheme, { kvHeads, headDim }: Heads): KvForm | string {
  const form = kvKernelForm(scheme, { kvHeads, headDim, pageTokens: 0 });
  return typeof form === 'string' ? form : { ...form, pageTokens: kvPageUnit(form) };
}

/**
 * What cachedAttention() simulates, computed as a decoder does: the tokens of each sequence are packed into pages by
 * ops.kvPack, and every query reads pages and exact tail through ops.kvDecode. q [T, heads*headDim], k and v [T, kvHeads*headDim] and
 * y of any activation dtype; what is cached, and q, are rounded to f16. Throws LPQ_DEVICE for what decodingObstacle() says.
 */
export function decodedAttention(
  rt: NativeRuntime,
  scheme: KvScheme,
  { q, k, v, y }: { q: Tensor; k: Tensor; v: Tensor; y: Tensor },
  batch: Batch,
  p: AttentionParams,
  sinks?: Tensor,
): void {
  const why = decodingObstacle(scheme, p, Math.max(0, ...batch.lengths));
  const form = formOf(scheme, p);
  if (why !== undefined || typeof form === 'string')
    throw new LpqError('LPQ_DEVICE', `this KV cache cannot be read on ${rt.device}: ${why}`, {
      got: rt.device,
      expected: 'cpu',
      hint: 'Use --device cpu, which simulates every cache.',
    });
  let first = 0;
  for (const length of batch.lengths) {
    const rows = (x: Tensor): Tensor => {
      const from = x.view([length, x.shape[1] as number], first * (x.shape[1] as number));
      const half = rt.allocate('f16', from.shape);
      ops.cast(rt, from, half);
      from.dispose();
      return half;
    };
    if (length > 0) {
      const [queries, keys, values] = [rows(q), rows(k), rows(v)];
      const exact = rt.allocate('f32', queries.shape);
      decodeSpan(rt, form, scheme.residual, { q: queries, k: keys, v: values, y: exact }, p, sinks);
      const to = y.view(queries.shape, first * (queries.shape[1] as number));
      ops.cast(rt, exact, to);
      for (const tensor of [queries, keys, values, exact, to]) tensor.dispose();
    }
    first += length;
  }
}

/** One sequence; q, k, v f16, y f32. */
function decodeSpan(
  rt: NativeRuntime,
  form: KvForm,
  residual: number,
  { q, k, v, y }: { q: Tensor; k: Tensor; v: Tensor; y: Tensor },
  { heads, scale }: AttentionParams,
  sinks?: Tensor,
): void {
  const [length, width] = k.shape as [number, number];
  // Tokens that any query reads as they are packed: without a tail all, its own included.
  const packed = residual === 0 ? length : length - 1 - ((length - 1) % residual);
  const room = Math.max(1, Math.ceil(packed / form.pageTokens));
  const owned = kvPageBytes(form).map((bytes) => rt.allocate('u8', [room, bytes]));
  const pages = kvPages(owned);
  const columns = heads * form.headDim;
  const table = (count: number): Tensor =>
    uploadTyped(
      rt,
      'i32',
      [count, room],
      Int32Array.from({ length: count * room }, (_, i) => i % room),
    );
  if (packed > 0) {
    const [keys, values, places] = [k.view([packed, width]), v.view([packed, width]), table(1)];
    const row = places.view([room]);
    ops.kvPack(rt, keys, values, row, pages, form);
    for (const tensor of [keys, values, places, row]) tensor.dispose();
  }
  /**
   * The queries first .. of `count` turns, which are to the kernel as many sequences: turn i has lengths(i) packed tokens and an
   * exact tail of `tail`, and asks for its newest `queries`.
   */
  const decode = (first: number, count: number, lengths: (i: number) => number, tail: number, queries: number) => {
    const ints = (of: (i: number) => number): Tensor =>
      uploadTyped(
        rt,
        'i32',
        [count],
        Int32Array.from({ length: count }, (_, i) => of(i)),
      );
    const exact = (x: Tensor): Tensor =>
      tail === 0 ? rt.allocate('f16', [count, 1, width]) : x.view([count, tail, width], first * width);
    const cache = {
      pages,
      table: table(count),
      lengths: ints(lengths),
      tailKeys: exact(k),
      tailValues: exact(v),
      tails: ints(() => tail),
    };
    const [from, to] = [q, y].map((x) => x.view([count * queries, columns], first * columns)) as [Tensor, Tensor];
    ops.kvDecode(rt, from, cache, to, { ...form, heads, scale, queries }, sinks);
    for (const tensor of [cache.table, cache.lengths, cache.tailKeys, cache.tailValues, cache.tails, from, to])
      tensor.dispose();
  };
  if (residual === 0) decode(0, 1, () => length, 0, length);
  else {
    const turns = Math.floor(length / residual);
    const rest = length - turns * residual;
    if (turns > 0) decode(0, turns, (i) => i * residual, residual, residual);
    if (rest > 0) decode(turns * residual, 1, () => turns * residual, rest, rest);
  }
  for (const page of owned) page.dispose();
}
