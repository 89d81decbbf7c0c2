import { KvPool, KvSequence } from '../kv/cache.js';
import { blockTokens, kvPage } from '../kv/page.js';
import type { CacheMaker } from '../verify/kv-case.js';

/** lpq's packed cache, as the verifier examines it. */
export const CACHE: CacheMaker = {
  block: blockTokens,
  make: (rt, scheme, page, pages) => {
    const pool = new KvPool(rt, kvPage(scheme, page), pages);
    return {
      tensors: pool.tensors,
      sequence: (table) => new KvSequence(pool, table),
      attend: (sequences, q, y, queries) => pool.attend(sequences as readonly KvSequence[], q, y, queries),
      dispose: () => pool.dispose(),
    };
  },
};
