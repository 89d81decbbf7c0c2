import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { scratch } from '../../formats/scratch.js';
import {
  configOf,
  containerOf,
  failuresOf,
  packedGguf,
  rewritten,
  type Stored,
  sameFile,
  withTokens,
} from './gguf-checkpoints.js';

// MiniMax-M3: indexers, and names that published checkpoints have otherwise than the class.

/** Gate and up, which the class has in one linear. */
function apart(all: readonly Stored[]): Stored[] {
  return all.flatMap((each) => {
    if (!each.name.includes('gate_up_proj')) return [each];
    const [rows, columns] = each.shape as [number, number];
    const half = (rows / 2) * columns;
    return ['gate_proj', 'up_proj'].map((name, i) => ({
      ...{ name: each.name.replace('gate_up_proj', name), dtype: each.dtype, shape: [rows / 2, columns] },
      data: (each.data as Uint16Array).slice(i * half, (i + 1) * half),
    }));
  });
}

const RENAMED: readonly (readonly [RegExp, string])[] = [
  [/\.mlp\.(gate|experts|shared_experts)\./, '.block_sparse_moe.$1.'],
  [/\.gate\.e_score/, '.e_score'],
  [/\.self_attn\.indexer\./, '.self_attn.index_'],
  [/(experts\.\d+)\.gate_proj/, '$1.w1'],
  [/(experts\.\d+)\.up_proj/, '$1.w3'],
  [/(experts\.\d+)\.down_proj/, '$1.w2'],
];

test('checkpoints under the names of the class and under published ones become the same file', async () => {
  const root = scratch();
  const [saved, published] = ['saved', 'published'].map((name) => path.join(root, name)) as [string, string];
  const sizes = { vocab_size: 320, swiglu_limit: 7, index_block_size: 4 };
  await withTokens('minimax_m3_vl_text', saved, sizes);
  const renamed = (all: readonly Stored[]) =>
    apart(all).map((each) => ({
      ...each,
      name: RENAMED.reduce((name, [from, to]) => name.replace(from, to), each.name),
    }));
  await rewritten(saved, published, renamed, configOf(saved));
  for (const model of [saved, published]) {
    await packedGguf(model);
    assert.deepEqual(await failuresOf(model), []);
  }
  sameFile(saved, published);
  const file = containerOf(saved);
  assert.deepEqual(file.tensor('blk.1.indexer.k_proj.weight').dims, [128, 32]);
  assert.deepEqual(file.key('minimax-m3.attention.indexer.block_size').value, Buffer.from([4, 0, 0, 0]));
  const moved = await failuresOf(published, {
    gguf: (made) => {
      const { data } = made.tensor('blk.1.indexer.q_norm.weight');
      data[2]! ^= 1;
    },
  });
  assert.match(moved.join(), /'blk.1.indexer.q_norm.weight' differs from .*index_q_norm.weight/);
});
