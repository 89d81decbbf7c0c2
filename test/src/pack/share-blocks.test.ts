import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { CanonicalModule } from '../../../formats/canonical/schema.js';
import { printSharing, sharingOf } from '../../../src/pack/share-blocks.js';

/** A checkpoint of linears [N, K] with heads for 8 ranks. */
function checkpoint(shapes: Readonly<Record<string, readonly [number, number]>>) {
  const module = (name: string) =>
    ({
      type: 'u4',
      shape: shapes[name],
      granularity: { kind: 'group', size: 64 },
      sparsity: 'none',
      groupIndex: false,
      permutation: false,
    }) as unknown as CanonicalModule;
  return { config: { num_attention_heads: 32, num_key_value_heads: 8 }, module };
}

const sharing = (shapes: Readonly<Record<string, readonly [number, number]>>) =>
  sharingOf(checkpoint(shapes), Object.keys(shapes));

test('parts in multiples of 32 along N and of 128 along K', () => {
  // Llama 3 8B: K/tp of down_proj is 7168, 3584, 1792 and 896; its 8 heads of keys end it at 16.
  const llama = sharing({ 'a.k_proj': [1024, 4096], 'a.o_proj': [4096, 4096], 'a.down_proj': [4096, 14336] });
  assert.deepEqual(llama.ranks, [2, 4, 8]);
  assert.match(llama.limit?.why ?? '', /'a\.k_proj': its 8 heads cannot be split over 16 ranks/);
  // Qwen2.5 7B: 18944 / 2 = 9472 = 74 x 128, / 4 = 4736 = 37 x 128, / 8 = 2368 is no multiple of 128.
  const qwen = sharing({ 'a.down_proj': [3584, 18944] });
  assert.deepEqual(qwen.ranks, [2, 4]);
  assert.equal(qwen.limit?.count, 8);
  assert.match(printSharing(qwen), /2, 4 ranks .*; 8: 'a\.down_proj' has parts of 2368, no multiple of 128/);
  // Experts of 768: 384 = 3 x 128, 192 is none.
  assert.deepEqual(sharing({ 'mlp.experts.0.down_proj': [2048, 768] }).ranks, [2]);
  assert.match(printSharing(sharing({ 'a.up_proj': [48, 64] })), /ranks cannot share it in whole blocks; 2:/);
  // What is on every rank whole limits nothing.
  assert.deepEqual(sharing({ 'a.kv_a_proj_with_mqa': [576, 2048] }).ranks, [2, 4, 8, 16]);
});
