import { type NativeRuntime, type Tensor, uploadTyped } from '../../native/binding.js';
import type { KvForm, KvPages } from '../../native/kv-ops.js';
import { type AttentionParams, ops } from '../../native/ops.js';

/** Dims of a head up to which ops.attention takes prompts on every device. */
export const MOST_PROMPT_DIMS = 256;

/** A cache of which nothing is read: ops.kvDecode wants one beside an exact tail. */
interface Unread {
  readonly form: KvForm;
  readonly pages: KvPages;
  /** I32 [P], of any of its pages. */
  readonly table: Tensor;
}

/**
 * Causal attention of prompts of `counts` tokens that read themselves alone: each is the exact tail of a sequence of which nothing is
 * packed. q, k and v f16, a token a row, y of any activation dtype.
 */
export function exactPrompts(
  rt: NativeRuntime,
  { form, pages, table }: Unread,
  { q, k, v, y }: { readonly q: Tensor; readonly k: Tensor; readonly v: Tensor; readonly y: Tensor },
  counts: readonly number[],
  { heads, scale }: Pick<AttentionParams, 'heads' | 'scale'>,
  sinks?: Tensor,
): void {
  const one = (value: number): Tensor => uploadTyped(rt, 'i32', [1], Int32Array.of(value));
  let first = 0;
  for (const count of counts) {
    const rows = (x: Tensor, shape: readonly number[]) => x.view(shape, first * (x.shape[1] as number));
    const [own, out] = [q, y].map((x) => rows(x, [count, x.shape[1] as number])) as [Tensor, Tensor];
    const [tailKeys, tailValues] = [k, v].map((x) => rows(x, [1, count, x.shape[1] as number])) as [Tensor, Tensor];
    const [lengths, tails, pageTable] = [one(0), one(count), table.view([1, table.shape[0] as number])];
    const cache = { pages, table: pageTable, lengths, tails, tailKeys, tailValues };
    ops.kvDecode(rt, own, cache, out, { ...form, heads, scale, queries: count }, sinks);
    for (const tensor of [own, out, tailKeys, tailValues, lengths, tails, pageTable]) tensor.dispose();
    first += count;
  }
}
