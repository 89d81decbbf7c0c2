// Run by early-launches.test.ts under the fake driver, which tells of launches on stderr: operations whose kernels may start early, behind all
// that there is on a stream. A line "# ..." says what comes between.
import { createRuntime, fromTyped } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';

const rt = createRuntime({ device: 'cuda:0' });
const zeros = (count: number) => rt.upload(fromTyped('f32', [1, count], new Float32Array(count)));
const [h, y, other] = [zeros(8), zeros(8), zeros(8)];
const [cos, sin] = [zeros(4), zeros(4)];
const positions = rt.upload(fromTyped('i32', [1], Int32Array.of(0)));
const add = () => ops.add(rt, h, y, h);
const said = async (what: string) => {
  await rt.mark();
  console.error(`# ${what}`);
};

await said('uploads');
add();
add();
ops.cast(rt, h, other);
await said('a copy');
add();
add();
ops.zero(rt, other);
await said('zeros');
add();
ops.rope(rt, h, cos, sin, positions, { heads: 1, headDim: 8, rotary: 8, style: 'half' });
add();
// A kernel that may meet bad data has run: what it found is copied.
await said('a mark');
add();
add();
const call = { op: 'add', inputs: [h, y], outputs: [h] };
await said('a recording');
await rt.time([call, call], { passes: 1 });
add();
add();
await rt.sync();
