import assert from 'node:assert/strict';
import { allocate, createRuntime, fromTyped } from '../../native/binding.js';
import { LayoutDevice } from '../../src/layout/device.js';
import { allPacked, pack } from '../../src/layout/engine.js';
import type { MemoryLayout } from '../../src/layout/memory.js';
import { marlinWeight } from '../../src/pack/layouts/marlin.js';
import { rowStreams } from '../../src/pack/layouts/stream.js';
import { tilusWeight } from '../../src/pack/layouts/tilus.js';
import { turbomindWeight } from '../../src/pack/layouts/turbomind.js';
import { gpuTest } from './gpu.js';

/** [layout, rows, columns of the matrix]: whole, and with tails whose rows begin at any byte. */
function cases(): [string, MemoryLayout, number, number][] {
  const list: [string, MemoryLayout, number, number][] = [];
  for (let bits = 1; bits <= 8; bits++)
    list.push(
      [`tilus ${bits}`, tilusWeight(1024, 2048, bits), 1024, 2048],
      [`tilus ${bits} with tails`, tilusWeight(1024, 2048, bits), 1001, 1933],
      [`rows ${bits}`, rowStreams(500, 1056, bits), 500, 1056],
    );
  for (const bits of [4, 8] as const)
    list.push(
      [`marlin ${bits}`, marlinWeight(512, 512, bits), 509, 480],
      [`turbomind ${bits}`, turbomindWeight(512, 512, bits, 'b'), 512, 504],
    );
  return list;
}

gpuTest('codes laid out on the device are the bytes of the CPU', async () => {
  const cpu = createRuntime();
  const device = Object.assign(createRuntime({ threads: 1 }), {
    layouts: new LayoutDevice(createRuntime({ device: 'cuda:0' })),
  });
  let state = 7;
  for (const [name, layout, rows, columns] of cases()) {
    const data = new Uint8Array(rows * Math.ceil((columns * layout.bits) / 8));
    for (let i = 0; i < data.length; i++) {
      state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
      data[i] = state >>> 24;
    }
    const matrix = fromTyped('u8', [rows, data.length / rows], data);
    const [want, got] = [allocate('u8', [layout.bytes]), allocate('u8', [layout.bytes])];
    got.bytes().fill(0xa5);
    const options = { streamColumns: columns, bias: 2 ** (layout.bits - 1), pad: 2 ** layout.bits - 1 };
    pack(cpu, layout, matrix, want, options);
    pack(device, layout, matrix, got, options);
    await Promise.all([allPacked(cpu), allPacked(device)]);
    assert.ok(Buffer.from(want.bytes()).equals(Buffer.from(got.bytes())), name);
    for (const tensor of [matrix, want, got]) tensor.dispose();
  }
});

gpuTest('recorded passes are timed by the device, and a call that fails is named', async () => {
  const rt = createRuntime({ device: 'cuda:0' });
  const [from, to] = [rt.allocate('u8', [1 << 26]), rt.allocate('u8', [1 << 26])];
  const copy = { op: 'copy', inputs: [from], outputs: [to] };
  const one = await rt.time([copy], { passes: 5 });
  const four = await rt.time([copy, copy, copy, copy], { passes: 5 });
  assert.equal(one.length, 5);
  const [least, most] = [Math.min(...four), Math.max(...one)];
  // Launches in a graph cost little beside 128 MB read and written: four copies take about four times as long.
  assert.ok(least > 2 * Math.min(...one) && least < 8 * most, `${one} ${four}`);
  await assert.rejects(rt.time([{ ...copy, outputs: [rt.allocate('u8', [1])] }]), {
    code: 'LPQ_NATIVE_ARGUMENT',
    op: 'copy',
  });
  assert.equal((await rt.time([copy], { passes: 3, graph: false })).length, 3);
  const seen = rt.telemetry();
  if (seen?.power !== undefined) assert.ok(seen.power > 10 && seen.power < 2000, `${seen.power} W`);
});
