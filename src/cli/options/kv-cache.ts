import { kvKernelForm } from '../../../formats/kv/kernels.js';
import { latentPageParts } from '../../../formats/kv/latent.js';
import { allocate } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { KvPool } from '../../kv/cache.js';
import { KernelPool, KernelSequence } from '../../kv/kernel-pool.js';
import { blockTokens, kvPage } from '../../kv/page.js';
import { KvSequence, type KvStore } from '../../kv/sequence.js';
import type { CacheMaker, CacheUnderTest } from '../../verify/kv-case.js';
import type { LatentMaker } from '../../verify/latent-case.js';

const examined = <T extends KvStore & Pick<CacheUnderTest, 'tensors' | 'dispose'>>(
  pool: T,
  sequence: (pool: T, table: readonly number[]) => KvSequence,
): CacheUnderTest => ({
  tensors: pool.tensors,
  sequence: (table) => sequence(pool, table),
  attend: (sequences, q, y, queries) => pool.attend(sequences as readonly KvSequence[], q, y, queries),
  dispose: () => pool.dispose(),
});

/** lpq's packed cache of any scheme, as the verifier examines it. */
export const CACHE: CacheMaker = {
  arithmetic: 'fp',
  block: blockTokens,
  obstacle: () => undefined,
  make: (rt, scheme, page, pages) =>
    examined(new KvPool(rt, kvPage(scheme, page), pages), (pool, table) => new KvSequence(pool, table)),
};

/** The cache that kernels fill and read. */
export const KERNEL_CACHE: CacheMaker = {
  arithmetic: 'tensor cores',
  block: blockTokens,
  obstacle: (scheme, headDim) => {
    const form = kvKernelForm(scheme, { kvHeads: 1, headDim, pageTokens: blockTokens(scheme) });
    return typeof form === 'string' ? form : undefined;
  },
  make: (rt, scheme, page, pages) =>
    examined(new KernelPool(rt, scheme, page, pages), (pool, table) => new KernelSequence(pool, table)),
};

/** lpq's cache of latents, on every device. */
export const LATENTS: LatentMaker = {
  make: (rt, { bits, group }, { latent, rotary, tokens }, count) => {
    const bytes = latentPageParts({ bits, group, latent, rotary, tokens }).reduce((all, part) => all + part, 0);
    const host = allocate('u8', [count, bytes]);
    host.bytes().fill(0xa5);
    const pages = rt.upload(host);
    host.dispose();
    const form = { bits, group, latent, rotary, pageTokens: tokens };
    return {
      pages,
      pack: (c, turned, table) => ops.latentPack(rt, c, turned, table, pages, form),
      append: (c, turned, { table, lengths }) => ops.latentAppend(rt, c, turned, { pages, table, lengths }, form),
      attend: (q, y, { table, lengths }, p) => ops.latentDecode(rt, q, { pages, table, lengths }, y, { ...form, ...p }),
      dispose: () => pages.dispose(),
    };
  },
};
