import assert from 'node:assert/strict';
import { createRuntime, fromTyped, type NativeRuntime, readTyped, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { Random } from '../native/support.js';
import { gpuTest } from './gpu.js';

const filled = (rt: NativeRuntime, count: number, value: number) =>
  rt.upload(fromTyped('f32', [count], new Float32Array(count).fill(value)));

async function holds(rt: NativeRuntime, tensor: Tensor, value: number): Promise<void> {
  const got = await readTyped(rt, tensor);
  const at = got.findIndex((element) => element !== value);
  assert.equal(at, -1, `element ${at} is ${got[at]}, not ${value}`);
}

gpuTest('a parked tensor leaves the device and comes back, whatever happens to its memory', async () => {
  const rt = createRuntime({ device: 'cuda:0', vramLimit: 96 * 2 ** 20 });
  const count = 6 * 2 ** 20; // 24 MiB
  const parked: Tensor[] = [];
  for (let i = 0; i < 12; i++) {
    const x = filled(rt, count, i);
    ops.add(rt, x, x, x);
    parked.push(rt.park(x));
    x.dispose();
    const junk = rt.allocate('f32', [count]);
    ops.zero(rt, junk);
    junk.dispose();
  }
  await rt.mark();
  assert.equal(parked[3]?.device, 'cpu');
  assert.equal(parked[3]?.parked, true);
  assert.equal(rt.memory()?.parked, 12 * count * 4);
  for (const [i, tensor] of parked.entries()) {
    assert.equal(new Float32Array(tensor.bytes(0, 4).slice().buffer)[0], 2 * i);
    const back = rt.restore(tensor);
    tensor.dispose();
    ops.add(rt, back, back, back);
    await holds(rt, back, 4 * i);
    back.dispose();
  }
  await rt.sync();
  assert.equal(rt.memory()?.parked, 0);
  assert.equal(rt.memory()?.peakParked, 12 * count * 4);
  assert.equal(rt.memory()?.used, 0);
});

gpuTest('marks settle while the queue runs on, and tell of failures', async () => {
  const rt = createRuntime({ device: 'cuda:0' });
  const x = filled(rt, 1000, 0);
  const one = filled(rt, 1000, 1);
  for (let i = 0; i < 50; i++) {
    ops.add(rt, x, one, x);
    if (i % 5 === 0) await rt.mark();
  }
  await holds(rt, x, 50);
  const ids = rt.upload(fromTyped('i32', [2], Int32Array.of(1, 9)));
  const table = rt.upload(fromTyped('f32', [4, 2], new Float32Array(8)));
  ops.embedding(rt, ids, table, rt.allocate('f32', [2, 2]));
  await assert.rejects(rt.mark(), { code: 'LPQ_NATIVE_ARGUMENT', op: 'embedding' });
  await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT', op: 'embedding' });
  await rt.mark();
});

gpuTest('limits of the device and of pinned memory are told of, and all comes back', async () => {
  const rt = createRuntime({ device: 'cuda:0', vramLimit: 64 * 2 ** 20, hostLimit: 40 * 2 ** 20 });
  const count = 6 * 2 ** 20;
  const x = filled(rt, count, 7);
  const parked = rt.park(x);
  assert.throws(() => rt.park(x), { code: 'LPQ_HOST_MEMORY' });
  assert.throws(() => rt.allocate('u8', [41 * 2 ** 20]), { code: 'LPQ_CUDA_MEMORY' });
  x.dispose();
  const wide = rt.allocate('u8', [60 * 2 ** 20]); // once the copy has ended
  wide.dispose();
  await holds(rt, rt.restore(parked), 7);
});

for (const second of [0, 1])
  gpuTest(
    `tensors go from cuda:0 to another runtime on cuda:${second} and back`,
    async () => {
      const a = createRuntime({ device: 'cuda:0' });
      const b = createRuntime({ device: `cuda:${second}` });
      const x = filled(a, 3_000_001, 5);
      await a.sync();
      const y = b.copyFrom(x);
      x.dispose();
      ops.add(b, y, y, y);
      await b.mark();
      await holds(a, a.copyFrom(y), 10);
      await holds(a, a.restore(b.park(y)), 10);
      const foreign = a.allocate('f32', [3_000_001]);
      ops.add(b, y, foreign, y);
      await assert.rejects(b.sync(), { code: 'LPQ_NATIVE_ARGUMENT' });
    },
    second + 1,
  );

gpuTest('pack_rows and unpack_rows give the bytes of the CPU', async () => {
  const cpu = createRuntime(2);
  const gpu = createRuntime({ device: 'cuda:0' });
  const random = new Random(5);
  for (const [rows, width] of [
    [7, 4096],
    [3, 14336],
    [13, 333],
    [40, 8],
  ] as const) {
    const data = Float32Array.from(
      { length: rows * width },
      () => random.normal() * 2 ** random.integer(-140, 120) * 2 ** random.integer(-9, 0),
    );
    for (let i = 0; i < data.length; i += 97) data[i] = [Infinity, -Infinity, Number.NaN, -0][(i / 97) % 4] as number;
    const run = async (rt: NativeRuntime) => {
      const y = rt.allocate('f16', [rows, width]);
      const scales = rt.allocate('f32', [rows]);
      const back = rt.allocate('f32', [rows, width]);
      ops.packRows(rt, rt.upload(fromTyped('f32', [rows, width], data)), y, scales);
      ops.unpackRows(rt, y, scales, back);
      const bytes: Buffer[] = [];
      for (const tensor of [y, scales, back]) bytes.push(Buffer.from((await rt.download(tensor)).bytes()));
      return bytes;
    };
    const [want, got] = [await run(cpu), await run(gpu)];
    for (const [i, bytes] of want.entries())
      assert.ok(bytes.equals(got[i] as Buffer), `${rows} x ${width}: output ${i}`);
  }
});
