// Run by pack-kernels.test.ts under the fake driver with emulated kernels: every layout of weights is packed by the "device" and by
// the CPU's engine, and unpacked by the device. Prints what differs, and how many there were.
import { allocate, createRuntime, fromTyped, type Tensor } from '../../../native/binding.js';
import { LayoutDevice } from '../../../src/layout/device.js';
import { allPacked, pack, unpack } from '../../../src/layout/engine.js';
import { extents, type MemoryLayout } from '../../../src/layout/memory.js';
import { marlinWeight } from '../../../src/pack/layouts/marlin.js';
import { columnStreams, rowStreams } from '../../../src/pack/layouts/stream.js';
import { tilusWeight } from '../../../src/pack/layouts/tilus.js';
import { turbomindWeight } from '../../../src/pack/layouts/turbomind.js';

const cpu = createRuntime({ threads: 2 });
const cuda = createRuntime({ device: 'cuda:0' });
const device = Object.assign(createRuntime({ threads: 1 }), { layouts: new LayoutDevice(cuda) });

let state = 1;
function codes(rows: number, bytes: number): Tensor {
  const data = new Uint8Array(rows * bytes);
  for (let i = 0; i < data.length; i++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    data[i] = state >>> 24;
  }
  return fromTyped('u8', [rows, bytes], data);
}

const cases: [name: string, layout: MemoryLayout][] = [];
for (let bits = 1; bits <= 8; bits++) {
  // Several tiles either way, and one; then what the matrix lacks is padding.
  cases.push([`tilus ${bits}`, tilusWeight(128, 256, bits)], [`tilus ${bits} short`, tilusWeight(32, 128, bits)]);
  cases.push([`rows ${bits}`, rowStreams(24, 96, bits)]);
  if (bits > 1) cases.push([`columns ${bits}`, columnStreams(24, 96, bits)]);
}
for (const bits of [4, 8] as const) {
  cases.push([`marlin ${bits}`, marlinWeight(256, 128, bits)]);
  for (const form of ['a', 'b', 'sm70'] as const)
    cases.push([`turbomind ${form} ${bits}`, turbomindWeight(128, 128, bits, form)]);
}

let count = 0;
for (const [name, layout] of cases) {
  const [n, k] = extents(layout);
  const { bits } = layout;
  // Whole, and with a tail whose rows begin anywhere: at words, at bytes, and with parts of a byte at their end.
  for (const [rows, columns] of [
    [n, k],
    [n - 3, k - 32],
    [n - 9, k - 5],
  ] as const)
    for (const [bias, pad] of [
      [0, 0],
      [2 ** (bits - 1), 2 ** bits - 1],
    ] as const) {
      const matrix = codes(rows, Math.ceil((columns * bits) / 8));
      const [want, got] = [allocate('u8', [layout.bytes]), allocate('u8', [layout.bytes])];
      want.bytes().fill(0x5a);
      got.bytes().fill(0xa5);
      const options = { streamColumns: columns, bias, pad };
      pack(cpu, layout, matrix, want, options);
      pack(device, layout, matrix, got, options);
      await Promise.all([allPacked(cpu), allPacked(device)]);
      count++;
      if (!Buffer.from(want.bytes()).equals(Buffer.from(got.bytes())))
        console.log(`${name}: ${rows} x ${columns}, bias ${bias}, pad ${pad} differs`);
      const there = [cuda.upload(want), cuda.allocate('u8', matrix.shape)] as const;
      unpack(cuda, layout, there[0], there[1], { streamColumns: columns, bias });
      const back = await cuda.download(there[1]);
      const again = allocate('u8', matrix.shape);
      unpack(cpu, layout, want, again, { streamColumns: columns, bias });
      await cpu.sync();
      if (!Buffer.from(back.bytes()).equals(Buffer.from(again.bytes()))) console.log(`${name}: does not read back`);
    }
}
console.log(`${count} packings`);

const [, layout] = cases[0] as (typeof cases)[0];
const there = cuda.upload(allocate('u8', [layout.bytes]));
cuda.enqueue('zero', [], [there], { value: 1 });
await cuda.sync().catch((error: { code: string; message: string }) => console.log(`${error.code}: ${error.message}`));
