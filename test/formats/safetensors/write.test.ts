import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync } from 'node:fs';
import { open } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { Checkpoint } from '../../../formats/safetensors/checkpoint.js';
import { SAFETENSORS_DTYPES, type SafetensorsDtype, tensorBytes } from '../../../formats/safetensors/dtypes.js';
import type { TensorData } from '../../../formats/safetensors/hash.js';
import type { TensorSpec } from '../../../formats/safetensors/header.js';
import { SafetensorsFile } from '../../../formats/safetensors/read.js';
import { planShards } from '../../../formats/safetensors/shard-plan.js';
import type { ShardFile } from '../../../formats/safetensors/tensor-slot.js';
import { SafetensorsWriter, writeSafetensors } from '../../../formats/safetensors/write.js';
import { fromTyped } from '../../../native/binding.js';
import { ARCHITECTURES, GOLDENS } from '../../src/model/fixtures.js';
import { designed, scratch } from '../scratch.js';
import { tensorHash } from './tensor-hash.js';

const root = scratch();
let count = 0;
function fresh(): string {
  const dir = path.join(root, String(count++));
  mkdirSync(dir);
  return dir;
}
const hashOf = (bytes: Uint8Array) => createHash('sha256').update(bytes).digest('hex');
const dtypes = [...SAFETENSORS_DTYPES.keys()] as SafetensorsDtype[];

const specs = fc
  .uniqueArray(
    fc.record({
      name: fc.oneof(fc.string({ unit: 'grapheme', maxLength: 12 }), fc.nat(20).map(String)),
      dtype: fc.constantFrom(...dtypes),
      shape: fc.array(fc.nat(5), { maxLength: 3 }),
    }),
    { selector: ({ name }) => name, maxLength: 12 },
  )
  .map((list) =>
    list.filter((spec) => spec.name !== '__metadata__' && typeof tensorBytes(spec.dtype, spec.shape) === 'number'),
  );

test('round trip of any tensors, any order of writing, any shard size; hashes are of name, dtype, shape and bytes', async () => {
  await fc.assert(
    fc.asyncProperty(specs, fc.integer({ min: 1, max: 300 }), fc.nat(), async (list, maxShardBytes, seed) => {
      const dir = fresh();
      const data = new Map(
        list.map((spec, i) => [spec.name, noise(tensorBytes(spec.dtype, spec.shape) as number, seed + i)]),
      );
      const writer = await SafetensorsWriter.create(dir, list, { maxShardBytes });
      const shuffled = [...list].sort((a, b) =>
        hashOf(Buffer.from(a.name + seed)).localeCompare(hashOf(Buffer.from(b.name + seed))),
      );
      await Promise.all(shuffled.map(({ name }) => writer.write(name, data.get(name) as Uint8Array)));
      const written = await writer.finish();
      assert.equal(readdirSync(dir).length, written.files.length);
      const checkpoint = Checkpoint.open(
        list.length > 0 || written.files.length > 1 ? dir : path.join(dir, 'model.safetensors'),
      );
      assert.deepEqual(new Set(checkpoint.names()), new Set(list.map(({ name }) => name)));
      for (const { name, dtype, shape } of list) {
        assert.equal(checkpoint.dtype(name), dtype);
        assert.deepEqual(checkpoint.shape(name), shape);
        const bytes = checkpoint.tensor(name).bytes();
        assert.deepEqual(Buffer.from(bytes), Buffer.from(data.get(name) as Uint8Array));
        assert.equal(written.sha256.get(name), tensorHash({ name, dtype, shape }, bytes));
      }
      for (const file of checkpoint.files) {
        assert.equal(file.header.dataStart % 8, 0);
        for (const entry of file.header.tensors) {
          const width = SAFETENSORS_DTYPES.get(entry.dtype)?.bits as number;
          if (width >= 8) assert.equal(entry.begin % (width / 8), 0, 'dtype ranks keep tensors aligned');
        }
      }
      checkpoint.close();
    }),
    { numRuns: 120 },
  );
});

test('the bytes of a file, spelled out', async () => {
  const dir = fresh();
  await writeSafetensors(path.join(dir, 'x.safetensors'), [
    { name: 'b', dtype: 'U8', shape: [2], data: Uint8Array.of(1, 2) },
    { name: '10', dtype: 'F16', shape: [1], data: Uint16Array.of(0x3c00) },
    { name: 'a', dtype: 'U8', shape: [], data: fromTyped('u8', [], Uint8Array.of(3)) },
    { name: '9', dtype: 'I64', shape: [1], data: BigInt64Array.of(-1n) },
  ]);
  const json =
    '{"__metadata__":{"format":"pt"},"9":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},' +
    '"10":{"dtype":"F16","shape":[1],"data_offsets":[8,10]},"a":{"dtype":"U8","shape":[],"data_offsets":[10,11]},' +
    '"b":{"dtype":"U8","shape":[2],"data_offsets":[11,13]}}';
  const padded = json.padEnd(Math.ceil(json.length / 8) * 8);
  const expected = Buffer.concat([
    Buffer.from([padded.length & 255, padded.length >> 8, 0, 0, 0, 0, 0, 0]),
    Buffer.from(padded),
    Buffer.from([255, 255, 255, 255, 255, 255, 255, 255, 0x00, 0x3c, 3, 1, 2]),
  ]);
  assert.deepEqual(readFileSync(path.join(dir, 'x.safetensors')), expected);
});

test('the same tensors give the same bytes, in whatever order they are written', async () => {
  const list: TensorSpec[] = Array.from({ length: 9 }, (_, i) => ({
    name: `t${i}`,
    dtype: i % 2 ? 'BF16' : 'U8',
    shape: [40 + i],
  }));
  const images = [];
  for (const order of [list, [...list].reverse()]) {
    const dir = fresh();
    const writer = await SafetensorsWriter.create(dir, list, { maxShardBytes: 150 });
    for (const { name, dtype, shape } of order)
      await writer.write(name, noise(tensorBytes(dtype, shape) as number, shape[0] as number));
    const { files } = await writer.finish();
    assert.ok(files.includes('model.safetensors.index.json'));
    assert.equal(files[0], `model-00001-of-0000${files.length - 1}.safetensors`);
    images.push(files.map((file) => [file, readFileSync(path.join(dir, file))]));
  }
  assert.deepEqual(images[0], images[1]);
});

test('shard plan: 5 GB by default, greedy in the order given, one tensor too large has its own', () => {
  const gb = (name: string, n: number): TensorSpec => ({ name, dtype: 'U8', shape: [n * 1e9] });
  const plan = planShards([gb('a', 3), gb('b', 2), gb('c', 7), gb('d', 1)]);
  assert.deepEqual(
    plan.shards.map(({ tensors }) => tensors.map(({ name }) => name)),
    [['a', 'b'], ['c'], ['d']],
  );
  const index = JSON.parse(plan.index?.text as string);
  assert.deepEqual(index, {
    metadata: { total_size: 13e9 },
    weight_map: {
      a: 'model-00001-of-00003.safetensors',
      b: 'model-00001-of-00003.safetensors',
      c: 'model-00002-of-00003.safetensors',
      d: 'model-00003-of-00003.safetensors',
    },
  });
});

test('rows: in order, out of order, concurrently; the hash is right each time', async () => {
  const whole = noise(64 * 33, 5);
  const rows = (a: number, b: number) => whole.subarray(a * 33, b * 33);
  for (const cuts of [
    [
      [0, 10],
      [10, 64],
    ],
    [
      [10, 64],
      [0, 10],
    ],
    [
      [20, 30],
      [0, 20],
      [50, 64],
      [30, 50],
    ],
  ] as [number, number][][])
    for (const concurrent of [false, true]) {
      const dir = fresh();
      const writer = await SafetensorsWriter.create(dir, [{ name: 'w', dtype: 'U8', shape: [64, 33] }]);
      const pending = [];
      for (const [a, b] of cuts) {
        pending.push(writer.writeRows('w', a, rows(a, b)));
        if (!concurrent) await pending.at(-1);
      }
      await Promise.all(pending);
      const { sha256 } = await writer.finish();
      assert.equal(sha256.get('w'), tensorHash({ name: 'w', dtype: 'U8', shape: [64, 33] }, whole));
      assert.deepEqual(
        Buffer.from(SafetensorsFile.open(path.join(dir, 'model.safetensors')).tensor('w').bytes()),
        Buffer.from(whole),
      );
    }
});

test('misuse is named, and leaves nothing', async () => {
  const w: TensorSpec = { name: 'w', dtype: 'F16', shape: [4, 2] };
  const misuses: [RegExp, (writer: SafetensorsWriter) => Promise<unknown>][] = [
    [/'x' was not declared/, (writer) => writer.write('x', new Uint8Array(1))],
    [/'w'.*got 15 bytes instead of the 16 of F16 \[4,2\]/, (writer) => writer.write('w', new Uint8Array(15))],
    [/'w'.*declared F16 and given bf16/, (writer) => writer.write('w', fromTyped('bf16', [4, 2], new Uint16Array(8)))],
    [/'w'.*not whole rows of 4 bytes/, (writer) => writer.writeRows('w', 0, new Uint8Array(6))],
    [/'w'.*rows 3 to 4 lie outside its 4/, (writer) => writer.writeRows('w', 3, new Uint8Array(8))],
    [/'w'.*rows -1/, (writer) => writer.writeRows('w', -1, new Uint8Array(8))],
    [
      /'w'.*only 12 of its 16 bytes/,
      async (writer) => {
        await writer.writeRows('w', 1, new Uint8Array(12));
        await writer.finish();
      },
    ],
    [
      /'w'.*rows from 0 were written twice/,
      async (writer) => {
        await writer.write('w', new Uint8Array(16));
        await writer.write('w', new Uint8Array(16));
      },
    ],
    [
      /'w'.*written twice/,
      async (writer) => {
        await writer.writeRows('w', 2, new Uint8Array(4));
        await writer.writeRows('w', 1, new Uint8Array(8));
      },
    ],
  ];
  for (const [message, misuse] of misuses) {
    const dir = fresh();
    const writer = await SafetensorsWriter.create(dir, [w]);
    await assert.rejects(misuse(writer), designed('LPQ_INTERNAL', message));
    if (!/not declared/.test(message.source)) {
      assert.deepEqual(readdirSync(dir), []);
      await assert.rejects(writer.write('w', new Uint8Array(16)), designed('LPQ_INTERNAL', message));
    }
    await writer.abort();
    assert.deepEqual(readdirSync(dir), []);
  }
  for (const [spec, message] of [
    [{ name: '__metadata__', dtype: 'U8', shape: [1] }, /reserved/],
    [{ name: '\ud800', dtype: 'U8', shape: [1] }, /not valid text/],
    [{ name: 'w', dtype: 'U8', shape: [1] }, /declared twice/],
    [{ name: 'x', dtype: 'I4', shape: [1] }, /no dtype I4/],
    [{ name: 'x', dtype: 'U8', shape: [-1] }, /no shape/],
    [{ name: 'x', dtype: 'F4', shape: [3] }, /whole bytes/],
    [{ name: 'x', dtype: 'U8', shape: [2 ** 40, 2 ** 40] }, /overflows/],
  ] as [TensorSpec, RegExp][]) {
    const dir = fresh();
    await assert.rejects(SafetensorsWriter.create(dir, [w, spec]), designed('LPQ_INTERNAL', message));
    assert.deepEqual(readdirSync(dir), []);
  }
});

/** A real file whose writes fail with `code` once `room` bytes are used up, as a full disk's do: partial writes first. */
function failing(code: string, room: number): (name: string) => Promise<ShardFile> {
  let left = room;
  return async (name) => {
    const handle = await open(name, 'wx+');
    return {
      async write(bytes, offset, length, position) {
        if (left === 0) throw Object.assign(new Error(`${code}: write`), { code });
        const some = Math.min(left, length);
        left -= some;
        return handle.write(bytes, offset, some, position);
      },
      read: (bytes, offset, length, position) => handle.read(bytes, offset, length, position),
      sync: () => handle.sync(),
      close: () => handle.close(),
    };
  };
}

test('a full disk is LPQ_DISK_FULL at whatever byte it fills, and leaves nothing', async () => {
  const list: TensorSpec[] = [0, 1, 2].map((i) => ({ name: `t${i}`, dtype: 'U8', shape: [100] }));
  const { shards } = planShards(list, { maxShardBytes: 100 });
  const total = shards.reduce((sum, { fileBytes }) => sum + fileBytes, 0);
  for (let room = 0; room < total; room += 37) {
    const dir = fresh();
    const run = async () => {
      const writer = await SafetensorsWriter.create(dir, list, {
        maxShardBytes: 100,
        openFile: failing('ENOSPC', room),
      });
      await Promise.all(list.map(({ name }) => writer.write(name, new Uint8Array(100))));
      await writer.finish();
    };
    await assert.rejects(run(), designed('LPQ_DISK_FULL', /disk is full/));
    assert.deepEqual(readdirSync(dir), []);
  }
  const dir = fresh();
  await assert.rejects(
    SafetensorsWriter.create(dir, list, { openFile: failing('EIO', 0) }),
    designed('LPQ_OUTPUT_WRITE', /the disk or its file system failed/),
  );
  // With room enough the same partial writes succeed.
  const writer = await SafetensorsWriter.create(dir, list, { openFile: failing('ENOSPC', 1e6) });
  for (const { name } of list) await writer.write(name, new Uint8Array(100));
  await writer.finish();
});

test('a real full device says the same', { skip: existsSync('/dev/full') ? false : 'no /dev/full' }, async () => {
  const dir = fresh();
  await assert.rejects(
    SafetensorsWriter.create(dir, [{ name: 'w', dtype: 'U8', shape: [1] }], {
      openFile: () => open('/dev/full', 'r+'),
    }),
    designed('LPQ_DISK_FULL', /w|model/),
  );
});

test('the same tensors written again are the reference writer’s bytes', async () => {
  for (const model of GOLDENS)
    for (const name of ['model.safetensors', 'golden.safetensors']) {
      const source = path.join(ARCHITECTURES, model, name);
      const from = SafetensorsFile.open(source);
      const dir = fresh();
      const list = [...from.names()].map((tensor) => from.spec(tensor));
      const options = { stem: name.replace('.safetensors', ''), metadata: from.metadata ?? {} };
      const writer = await SafetensorsWriter.create(dir, list, options);
      for (const tensor of from.names()) await writer.write(tensor, from.tensor(tensor));
      await writer.finish();
      assert.ok(readFileSync(path.join(dir, name)).equals(readFileSync(source)), source);
    }
});

test('no directory, an existing file', async () => {
  const missing = path.join(root, 'no', 'where');
  await assert.rejects(SafetensorsWriter.create(missing, []), designed('LPQ_OUTPUT_WRITE', /where/));
  const file = path.join(fresh(), 'x.safetensors');
  const tensors = [{ name: 'w', dtype: 'U8', shape: [1], data: Uint8Array.of(1) }] as const;
  await writeSafetensors(file, tensors);
  await assert.rejects(writeSafetensors(file, tensors), designed('LPQ_OUTPUT_EXISTS', 'x.safetensors'));
  await assert.rejects(writeSafetensors(`${file}.bin`, tensors), designed('LPQ_USAGE', /must end in .safetensors/));
});

test('abort in the middle leaves nothing', async () => {
  const dir = fresh();
  const writer = await SafetensorsWriter.create(dir, [{ name: 'w', dtype: 'U8', shape: [4] }]);
  assert.equal(readdirSync(dir).length, 1);
  await writer.abort();
  await writer.abort();
  assert.deepEqual(readdirSync(dir), []);
  await assert.rejects(writer.write('w', new Uint8Array(4)), designed('LPQ_INTERNAL', /finished or aborted/));
});

function noise(length: number, seed: number): Uint8Array {
  let state = (seed * 2654435761 + 1) >>> 0;
  return Uint8Array.from({ length }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state >>> 24;
  });
}

test('large native tensors written together, a disk that fills among them: LPQ_DISK_FULL, nothing left, room again', async () => {
  const list: TensorSpec[] = Array.from({ length: 8 }, (_, i) => ({ name: `t${i}`, dtype: 'U8', shape: [2 ** 20] }));
  const total = list.length * 2 ** 20;
  for (const room of [0, 0.3, 0.7, 0.99].map((share) => Math.floor(share * total))) {
    const dir = fresh();
    const tensors = list.map((_, i) => fromTyped('u8', [2 ** 20], noise(2 ** 20, i)));
    const run = async () => {
      const writer = await SafetensorsWriter.create(dir, list, {
        maxShardBytes: 2 ** 21,
        openFile: failing('ENOSPC', room + 4000),
      });
      const writes = list.map(({ name }, i) => writer.write(name, tensors[i] as TensorData));
      const ended = await Promise.allSettled(writes);
      for (const one of ended)
        if (one.status === 'rejected') assert.ok(designed('LPQ_DISK_FULL', /disk is full/)(one.reason));
      await writer.finish();
    };
    await assert.rejects(run(), designed('LPQ_DISK_FULL', /disk is full/));
    assert.deepEqual(readdirSync(dir), []);
    for (const tensor of tensors) tensor.dispose();
  }
});

test('abort while tensors are being written and hashed leaves nothing, and their writes end', async () => {
  const dir = fresh();
  const list: TensorSpec[] = Array.from({ length: 4 }, (_, i) => ({ name: `t${i}`, dtype: 'U8', shape: [2 ** 24] }));
  const writer = await SafetensorsWriter.create(dir, list);
  const tensor = fromTyped('u8', [2 ** 24], noise(2 ** 24, 1));
  const writes = list.map(({ name }) => writer.write(name, tensor));
  const ended = Promise.allSettled(writes);
  await writer.abort();
  tensor.dispose();
  await ended;
  assert.deepEqual(readdirSync(dir), []);
  await assert.rejects(writer.finish(), designed('LPQ_INTERNAL', /aborted/));
});
