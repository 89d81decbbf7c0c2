import assert from 'node:assert/strict';
import { copyFileSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { setImmediate } from 'node:timers/promises';
import { encodeHeader, type TensorEntry } from '../../../formats/safetensors/header.js';
import { readHeads } from '../../../src/stream/heads.js';
import { Place } from '../../../src/stream/places.js';
import { Supply } from '../../../src/stream/supply.js';
import { scratch } from '../cli/lpq.js';

const BLOCKS = 5;
const names = (block: number) => [`model.layers.${block}.norm.weight`, `model.layers.${block}.mlp.up.weight`];

/** A shard a block, each of another size, and one outside of blocks; each takes until `meanwhile` settles to come. */
async function supply(t: Parameters<typeof scratch>[0], meanwhile = Promise.resolve()) {
  const home = scratch(t);
  const folder = scratch(t);
  const files: string[] = [];
  for (let block = 0; block <= BLOCKS; block++) {
    const rows = 10 + block;
    const entries: TensorEntry[] = (block === BLOCKS ? ['embed.weight'] : names(block)).map((name, i) => {
      const bytes = 40 * rows;
      return { name, dtype: 'F32', shape: [rows, 10], begin: i * bytes, end: (i + 1) * bytes };
    });
    const file = `${block}.safetensors`;
    const data = new Uint8Array(entries.at(-1)?.end ?? 0).fill(block);
    writeFileSync(path.join(home, file), Buffer.concat([encodeHeader(entries, {}), data]));
    files.push(file);
  }
  const remote = files.map((name) => {
    const { size } = statSync(path.join(home, name));
    return { path: name, size, etag: name, digest: 'sha256', oid: '' } as const;
  });
  const heads = await readHeads(
    remote.map((file) => ({
      file,
      headPath: path.join(home, `${file.path}.head`),
      readPart: async (at, length) => readFileSync(path.join(home, file.path)).subarray(at, at + length),
    })),
  );
  const places = heads.map(
    (shard, i) => new Place(shard, remote[i] as (typeof remote)[number], path.join(folder, shard.name), true),
  );
  const asked: string[] = [];
  const made = new Supply(places, async ({ shard, path: at }) => {
    asked.push(shard.name[0] as string);
    await meanwhile;
    copyFileSync(path.join(home, shard.name), at);
  });
  made.begin(Array.from({ length: BLOCKS }, (_, block) => names(block)));
  const settled = async () => {
    for (let i = 0; i < 20; i++) await setImmediate();
    return readdirSync(folder).sort().join(' ').replaceAll('.safetensors', '');
  };
  return { supply: made, asked, settled, shards: heads };
}

test('a block that is read brings the shards of the next, and those of blocks before go', async (t) => {
  const { supply: it, asked, settled, shards } = await supply(t);
  const size = (block: number) => shards[block]?.bytes ?? 0;
  assert.equal(it.mostBytes, size(3) + size(4));
  const release = await it.need(shards[0] as (typeof shards)[number]);
  assert.deepEqual(asked, ['0']);
  it.reads(names(0)[0] as string);
  release();
  assert.equal(await settled(), '0 1');
  it.reads(names(1)[1] as string);
  assert.equal(await settled(), '1 2');
  // A straggler of the block before changes nothing.
  it.reads(names(0)[1] as string);
  assert.equal(await settled(), '1 2');
  it.reads(names(2)[0] as string);
  it.reads(names(3)[0] as string);
  assert.equal(await settled(), '3 4');
  // What is outside of blocks comes when somebody needs it; the last block's may go for it.
  (await it.need(shards[5] as (typeof shards)[number]))();
  assert.match(await settled(), /5/);
  // Another pass: again from the first.
  it.reads(names(0)[0] as string);
  assert.equal(await settled(), '0 1');
  assert.ok(it.moved.peak <= it.mostBytes);
  assert.equal(asked.join(''), '01234501');
  await it.close();
});

test('shards of a block and of the next are on their way at once, in this order', async (t) => {
  let come = () => {};
  const meanwhile = new Promise<void>((resolve) => {
    come = resolve;
  });
  const { supply: it, asked, settled } = await supply(t, meanwhile);
  it.reads(names(3)[0] as string);
  assert.equal(await settled(), '');
  assert.deepEqual(asked, ['3', '4']);
  come();
  assert.equal(await settled(), '3 4');
  await it.close();
});

test('a shard stays while somebody takes of it, and whoever needs another waits', async (t) => {
  const { supply: it, settled, shards } = await supply(t);
  const [a, b, c] = [shards[4], shards[3], shards[2]] as [
    (typeof shards)[number],
    (typeof shards)[number],
    (typeof shards)[number],
  ];
  let taken = () => {};
  const taking = new Promise<void>((resolve) => {
    taken = resolve;
  });
  const end = it.onArrival((shard) => (shard === a ? taking : Promise.resolve()));
  (await it.need(a))();
  const hold = await it.need(b);
  let came = false;
  const third = it.need(c).then((release) => {
    came = true;
    release();
  });
  assert.equal(await settled(), '3 4');
  assert.equal(came, false);
  taken();
  await third;
  assert.equal(await settled(), '2 3');
  hold();
  end();
  await it.close();
  await assert.rejects(it.need(a), { code: 'LPQ_ABORTED' });
});
