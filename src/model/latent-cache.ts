import { type KvLatents, latentGrouped } from '../../formats/kv/latent.js';
import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { cropHeads, padHeads } from '../../native/kv-heads.js';
import { ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';

/**
 * Enqueues what a decoder reads that caches latents in few bits (docs/kv-cache.md): c f32 [T, latent] as its codes stand for it, in
 * place. On the CPU.
 */
export function throughLatents(rt: NativeRuntime, { bits, group }: KvLatents, c: Tensor): void {
  const [tokens, own] = c.shape as [number, number];
  if (tokens === 0) return;
  const dims = latentGrouped(own);
  if (dims % group !== 0)
    throw new LpqError('LPQ_USAGE', `groups of ${group} do not divide latents of ${own} dims`, {
      got: group,
      hint: 'Choose --kv-group for this model.',
    });
  const parts = {
    codes: rt.allocate('u8', [tokens, dims]),
    scales: rt.allocate('f16', [tokens, dims / group]),
    zeros: rt.allocate('f16', [tokens, dims / group]),
  };
  const heads = { headDim: own, dims };
  const stored = padHeads(rt, c, heads);
  ops.kvQuantize(rt, stored, parts, { bits, groupTokens: 1, groupDims: group });
  ops.kvDequantize(rt, parts, stored, { groupTokens: 1, groupDims: group });
  if (dims !== own) cropHeads(rt, stored, c, heads);
  // Kernels read halves.
  throughF16(rt, c);
  for (const part of [stored, ...Object.values(parts)]) part.dispose();
}

/** Enqueues x, f32, as f16 holds it, in place. */
export function throughF16(rt: NativeRuntime, x: Tensor): void {
  const half = rt.allocate('f16', x.shape);
  ops.cast(rt, x, half);
  ops.cast(rt, half, x);
  half.dispose();
}
