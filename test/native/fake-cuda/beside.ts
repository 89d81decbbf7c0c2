// Run by beside.test.ts with a driver that is none: what runtimes beside one of a device may take of its memory.
import { besideOf, makeBeside } from '../../../native/beside.js';
import { createRuntime } from '../../../native/binding.js';

const MIB = 2 ** 20;
const rt = createRuntime({ device: 'cuda:0', vramLimit: 1024 * MIB });
const told: unknown[] = [rt.lend(512 * MIB), rt.lend(1024 * MIB)];
const held = rt.allocate('f32', [64 * MIB]);
told.push(rt.lend(256 * MIB), rt.lend(1));
held.dispose();
told.push((rt.memory()?.limit ?? 0) / MIB);
makeBeside(rt, 3, 64 * MIB);
const beside = besideOf(rt);
told.push(
  beside.map((each) => [each.device, (each.memory()?.limit ?? 0) / MIB]),
  (rt.memory()?.limit ?? 0) / MIB,
);
// Memory passes from one to another.
const own = rt.allocate('f32', [1000]);
await rt.sync();
const copy = beside[0]?.copyFrom(own);
await beside[0]?.sync();
told.push(copy?.shape, besideOf(createRuntime(1)).length);
process.stdout.write(JSON.stringify(told));
