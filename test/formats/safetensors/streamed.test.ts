import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { setImmediate } from 'node:timers/promises';
import { encodeHeader, parseHeader, type TensorEntry } from '../../../formats/safetensors/header.js';
import type { RemoteShard, ShardStream } from '../../../formats/safetensors/stream.js';
import { StreamedTensors } from '../../../formats/safetensors/streamed.js';
import { LpqError } from '../../../src/core/error.js';
import { scratch } from '../../src/cli/lpq.js';

/** More than one piece that a thread reads, and a tail. */
const ELEMENTS = 2 ** 24 + 999;
const ENTRIES: readonly TensorEntry[] = [
  { name: 'norm', dtype: 'F32', shape: [8], begin: 0, end: 32 },
  { name: 'codes', dtype: 'U8', shape: [96], begin: 32, end: 128 },
  { name: 'weight', dtype: 'BF16', shape: [1, ELEMENTS], begin: 128, end: 128 + 2 * ELEMENTS },
];

/** One shard whose bytes are a counter's, and what was asked of it. */
function shards(t: Parameters<typeof scratch>[0]) {
  const dir = scratch(t);
  writeFileSync(path.join(dir, 'config.json'), '{}');
  const head = encodeHeader(ENTRIES, {});
  const bytes = head.length + (ENTRIES.at(-1) as TensorEntry).end;
  const header = parseHeader('a.safetensors', head.subarray(8), bytes);
  const shard: RemoteShard = { name: 'a.safetensors', bytes, header, head, samples: new Uint8Array(2 ** 14) };
  const asked = { needs: 0, held: 0, fills: 0, bytes: 0, flying: 0, broken: false };
  const stream: ShardStream = {
    shards: [shard],
    mostBytes: bytes,
    has: () => true,
    read: () => assert.fail('read on the thread of the program'),
    async fill(_, into, position) {
      assert.ok(asked.held > 0, 'the file may go while it is read');
      asked.fills++;
      asked.flying++;
      await setImmediate();
      const from = position - header.dataStart;
      for (let i = 0; i < into.length; i++) into[i] = (from + i) % 251;
      asked.bytes += into.length;
      asked.flying--;
      if (asked.broken) throw new LpqError('LPQ_FILE', 'it became shorter');
    },
    async need() {
      asked.needs++;
      asked.held++;
      return () => {
        assert.equal(asked.flying, 0, 'let go while it is read');
        asked.held--;
      };
    },
    reads: () => {},
    onArrival: () => () => {},
  };
  return { tensors: new StreamedTensors(dir, stream), asked };
}

test('a plain tensor is read in pieces, once for all who want it at the same time', async (t) => {
  const { tensors, asked } = shards(t);
  const [a, b] = await Promise.all([tensors.load('weight'), tensors.load('weight')]);
  assert.ok(a && b);
  assert.deepEqual({ ...asked }, { needs: 1, held: 0, fills: 2, bytes: 2 * ELEMENTS, flying: 0, broken: false });
  a.dispose();
  assert.deepEqual([b.dtype, b.shape], ['bf16', [1, ELEMENTS]]);
  const bytes = b.bytes();
  assert.ok(bytes.every((byte, i) => byte === (128 + i) % 251));
  // Nothing of it is kept for those who come later.
  (await tensors.load('weight'))?.dispose();
  assert.equal(asked.needs, 2);
  b.dispose();
  tensors.close();
});

test('codes, and what came with the headers, are for tensor()', (t) => {
  const { tensors } = shards(t);
  assert.equal(tensors.load('codes'), undefined);
  assert.equal(tensors.load('norm'), undefined);
  tensors.close();
});

test('who waits for a tensor hears why it cannot be read, and the next reader tries again', async (t) => {
  const { tensors, asked } = shards(t);
  asked.broken = true;
  const both = await Promise.allSettled([tensors.load('weight'), tensors.load('weight')]);
  assert.deepEqual(
    both.map((each) => each.status === 'rejected' && (each.reason as LpqError).code),
    ['LPQ_FILE', 'LPQ_FILE'],
  );
  assert.deepEqual([asked.held, asked.flying], [0, 0]);
  asked.broken = false;
  const tensor = await tensors.load('weight');
  assert.equal(tensor?.bytes(0, 1)[0], 128);
  tensor?.dispose();
  tensors.close();
});
