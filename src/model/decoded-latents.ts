import { type KvLatents, latentPageParts } from '../../formats/kv/latent.js';
import { type NativeRuntime, type Tensor, uploadTyped } from '../../native/binding.js';
import type { LatentForm } from '../../native/latent-ops.js';
import { ops } from '../../native/ops.js';
import type { Batch } from './program.js';

/** Tokens of a page. */
const PAGE_TOKENS = 64;

/** Queries of a launch: of 128 heads and latents of 512 dims what they ask and get is 100 MB. */
const QUERIES = 256;

/** The form of pages of latents, and the bytes of one. */
export function latentForm(
  { bits, group }: { readonly bits: number; readonly group: number },
  stored: { readonly latent: number; readonly rotary: number },
): { readonly form: LatentForm; readonly bytes: number } {
  const shape = { bits: bits as KvLatents['bits'], group, ...stored, tokens: PAGE_TOKENS };
  const bytes = latentPageParts(shape).reduce((all, part) => all + part, 0);
  return { form: { bits, group, ...stored, pageTokens: PAGE_TOKENS }, bytes };
}

/**
 * Packs every sequence of a batch and has each of its tokens read the latents up to its own as a decoder reads them, some tokens at a
 * time: `use` is told which, and what reads for them: q f16 [rows, heads*(latent + rotary)] into y [rows, heads*latent]. c, rotary: f16
 * [T, ...], dims as a page holds them.
 */
export function readLatents(
  rt: NativeRuntime,
  scheme: KvLatents,
  { c, rotary }: { readonly c: Tensor; readonly rotary: Tensor },
  batch: Batch,
  use: (
    rows: { readonly first: number; readonly count: number },
    attend: (q: Tensor, y: Tensor, p: { heads: number; scale: number }) => void,
  ) => void,
): void {
  const stored = { latent: c.shape[1] as number, rotary: rotary.shape[1] as number };
  const { form, bytes } = latentForm(scheme, stored);
  let first = 0;
  for (const length of batch.lengths) {
    if (length === 0) continue;
    const count = Math.ceil(length / form.pageTokens);
    const pages = rt.allocate('u8', [count, bytes]);
    const list = Int32Array.from({ length: count }, (_, i) => i);
    const table = uploadTyped(rt, 'i32', [1, count], list);
    const row = table.view([count]);
    const own = [c, rotary].map((x) => x.view([length, x.shape[1] as number], first * (x.shape[1] as number)));
    ops.latentPack(rt, own[0] as Tensor, own[1] as Tensor, row, pages, form);
    for (let from = 0; from < length; from += QUERIES) {
      const queries = Math.min(QUERIES, length - from);
      const lengths = uploadTyped(rt, 'i32', [1], Int32Array.of(from + queries));
      use({ first: first + from, count: queries }, (q, y, p) =>
        ops.latentDecode(rt, q, { pages, table, lengths }, y, { ...form, ...p, queries }),
      );
      lengths.dispose();
    }
    for (const tensor of [pages, table, row, ...own]) tensor.dispose();
    first += length;
  }
}
