import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { createRuntime, type NativeRuntime, typed } from '../../../../native/binding.js';
import { main } from '../../../../src/cli/main.js';
import type { Run } from '../../../../src/cli/run.js';
import { wholeModel } from '../../../../src/cli/verify/model.js';
import type { Recorder } from '../../../../src/verify/report.js';
import { CALIB, model, scratch } from '../lpq.js';

/** The CPU as a device: what products read is rounded to f16, and then `change` may touch what an operation wrote. */
function device(change: (op: string, values: Float32Array) => void = () => {}): NativeRuntime {
  const rt = createRuntime();
  const enqueue = rt.enqueue.bind(rt);
  const rounded: NativeRuntime['enqueue'] = (op, inputs, outputs, params) => {
    enqueue(op, inputs, outputs, params);
    if (!/norm|attention|gated/.test(op)) return;
    for (const wide of outputs) {
      const half = rt.allocate('f16', wide.shape);
      enqueue('cast', [wide], [half], {});
      enqueue('cast', [half], [wide], {});
      half.dispose();
    }
  };
  const download: NativeRuntime['download'] = async (tensor) => {
    await rt.sync();
    // What else is read back, such as clips, may lie in a mapped file.
    if (tensor.dtype === 'f32' && tensor.shape.length === 2) change('logits', typed<Float32Array>(tensor));
    return tensor.view(tensor.shape);
  };
  Object.defineProperty(rt, 'enqueue', { value: rounded });
  Object.defineProperty(rt, 'download', { value: download });
  return rt;
}

async function failures(against: string, dir: string, kernel: NativeRuntime): Promise<string[]> {
  const found: string[] = [];
  const recorder = {
    check: (holds: boolean, { message }: { message: string }) => void (holds || found.push(message)),
    detail: () => {},
  } as unknown as Recorder;
  const run = { interrupt: { check: () => {} } } as unknown as Run;
  await wholeModel(recorder, { dir, against, runtime: createRuntime(), kernel }, run);
  return found;
}

test('activations that become codes: the device is compared with itself exactly, and with the CPU as a draw', async (t) => {
  const dir = scratch(t);
  const [q, packed] = ['q', 'packed'].map((name) => path.join(dir, name)) as [string, string];
  const io = { stdout: process.stderr, stderr: process.stderr } as never;
  const few = ['--samples', '4', '--seq-len', '64', ...CALIB, '--device', 'cpu', '--quiet'];
  assert.equal(await main(['quantize', model, '-o', q, '--method', 'fmpq', '--bits', '4', ...few], io), 0);
  assert.equal(await main(['pack', q, '-o', packed, '--target', 'comet', '--device', 'cpu', '--quiet'], io), 0);

  // A rounding before codes moves the perplexity by more than the thousandth that other artifacts are held to.
  assert.deepEqual(await failures(q, packed, device()), []);
  const wrong = await failures(
    q,
    packed,
    device((_op, values) => {
      for (const i of values.keys()) values[i] = 0.5 * (values[i] as number);
    }),
  );
  assert.equal(wrong.length, 1);
  assert.match(wrong[0] as string, /the perplexity is \d+\.\d+ % away from that of .*q, more than \d+\.\d+ %/);
});
