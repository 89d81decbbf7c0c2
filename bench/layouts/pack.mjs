// Packing speed of every layout on the CPU: `node bench/layouts/pack.mjs [N K threads PATTERN]` after a build. For each layout GB/s of
// packed output by the clock, and by processor time as if the threads had it alone: on a busy machine only the
// second means something. One JSON line each.
import { allocate, createRuntime } from '../../dist/native/binding.js';
import { pack, unpack } from '../../dist/src/layout/engine.js';
import { marlinScales, marlinWeight, marlinZeros } from '../../dist/src/pack/layouts/marlin.js';
import { columnStreams, rowStreams } from '../../dist/src/pack/layouts/stream.js';
import { tilusScales, tilusWeight } from '../../dist/src/pack/layouts/tilus.js';
import { turbomindScales, turbomindWeight } from '../../dist/src/pack/layouts/turbomind.js';

const [n = 8192, k = 8192, threads = 2] = process.argv.slice(2, 5).map(Number);
const pattern = new RegExp(process.argv[5] ?? '');
const rt = createRuntime(threads);

const cases = [];
for (let bits = 1; bits <= 8; bits++) cases.push([`tilus ${bits}`, tilusWeight(n, k, bits)]);
for (const bits of [4, 8]) {
  cases.push([`marlin ${bits}`, marlinWeight(n, k, bits)]);
  for (const form of ['b', 'a', 'sm70']) cases.push([`turbomind ${form} ${bits}`, turbomindWeight(n, k, bits, form)]);
  cases.push([`turbomind experts ${bits}`, turbomindWeight(n, k, bits, 'b', 'n-major')]);
  cases.push([`marlin zeros ${bits}`, marlinZeros(n, k / 32, bits)]);
}
for (let bits = 2; bits <= 8; bits++) {
  cases.push([`gptq ${bits}`, columnStreams(n, k, bits)]);
  cases.push([`compressed-tensors ${bits}`, rowStreams(n, k, bits)]);
}
cases.push(['marlin scales', marlinScales(n, k / 32, false)]);
cases.push(['tilus scales', tilusScales(n, k / 32, 16)]);
cases.push(['turbomind scales', turbomindScales(n, k / 32, 32, false)]);

for (const [name, layout] of cases.filter(([name]) => pattern.test(name))) {
  const { bits } = layout;
  const columns = layout.columns.reduce((all, mode) => all * mode.size, 1);
  const coded = bits <= 8 && !name.includes('zeros');
  const dtype = bits <= 8 ? 'u8' : bits === 16 ? 'u16' : 'u32';
  const width = coded ? Math.ceil((columns * bits) / 8) : columns;
  const matrix = allocate(dtype, [n, width]);
  const bytes = matrix.bytes();
  for (let i = 0, state = 1; i < bytes.length; i++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    bytes[i] = (state >>> 24) & (coded || bits > 8 ? 255 : 2 ** bits - 1);
  }
  const packed = allocate('u8', [layout.bytes]);
  packed.bytes().fill(0);
  const back = allocate(dtype, [n, width]);
  const options = coded ? { streamColumns: columns } : {};
  const time = async (run) => {
    let best = { wall: Infinity, processor: Infinity };
    for (let i = 0; i < 4; i++) {
      const [start, used] = [performance.now(), process.cpuUsage()];
      run();
      await rt.sync();
      const wall = (performance.now() - start) / 1000;
      const { user, system } = process.cpuUsage(used);
      best = { wall: Math.min(best.wall, wall), processor: Math.min(best.processor, (user + system) / 1e6 / threads) };
    }
    const rate = (seconds) => Number((layout.bytes / 1e9 / seconds).toFixed(2));
    return { wall: rate(best.wall), processor: rate(best.processor) };
  };
  const forward = await time(() => pack(rt, layout, matrix, packed, options));
  const inverse = await time(() => unpack(rt, layout, packed, back, options));
  if (!Buffer.from(back.bytes()).equals(Buffer.from(bytes))) throw new Error(`${name} does not read back`);
  console.log(JSON.stringify({ layout: name, n, k, threads, packGBs: forward, unpackGBs: inverse }));
  for (const tensor of [matrix, packed, back]) tensor.dispose();
}
