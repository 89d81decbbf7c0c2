import assert from 'node:assert/strict';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { SourceCheckpoint } from '../../formats/canonical/source.js';
import { allocate, createRuntime, fromTyped, readTyped, typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { textPerplexity } from '../../src/eval/perplexity.js';
import { gpuTest } from './gpu.js';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const MODEL = path.join(root, 'share', 'tiny-llama');
const TEXT = path.join(root, 'share', 'text', 'books-valid.txt');

gpuTest('the model graph gives the perplexity of the CPU', async () => {
  const ask = (rt: Parameters<typeof textPerplexity>[0]) =>
    textPerplexity(rt, SourceCheckpoint.open(MODEL), TEXT, { ctx: 512 });
  const cpu = await ask(createRuntime());
  // fp32 throughout: sums in another order, 2^-24 of activations of some thousand terms.
  const exact = await ask(createRuntime({ device: 'cuda:0', activationDtype: 'f32' }));
  assert.ok(Math.abs(exact.nll - cpu.nll) < 1e-5, `${exact.nll} and ${cpu.nll}`);
  // Activations of 8 bits move a logit by about 2^-8 of its size at random; over 10^5 tokens little of it is left.
  const rounded = await ask(createRuntime({ device: 'cuda:0' }));
  assert.ok(Math.abs(rounded.nll - cpu.nll) < 1e-3, `${rounded.nll} and ${cpu.nll}`);
  const again = await ask(createRuntime({ device: 'cuda:0' }));
  assert.equal(again.nll, rounded.nll);
});

gpuTest('tensors travel there and back, also many at once', async () => {
  const rt = createRuntime({ device: 'cuda:0' });
  const sizes = [1, 1000, 300_000, 5_000_000, 20_000_000, 7];
  const sent = sizes.map((size) =>
    fromTyped(
      'i32',
      [size],
      Int32Array.from({ length: size }, (_, i) => i * 7 + size),
    ),
  );
  const there = sent.map((tensor) => rt.upload(tensor));
  const back = await Promise.all(there.map((tensor) => rt.download(tensor)));
  for (const [i, tensor] of back.entries())
    assert.ok(Buffer.from(tensor.bytes()).equals(Buffer.from((sent[i] as typeof tensor).bytes())), `tensor ${i}`);
  assert.equal(there[0]?.device, 'cuda:0');
  assert.throws(() => there[0]?.bytes(), { code: 'LPQ_NATIVE_ARGUMENT' });
});

gpuTest('the limit holds, is told of, and what was let go of is used again', async () => {
  const rt = createRuntime({ device: 'cuda:0', vramLimit: 64 * 2 ** 20 });
  assert.throws(() => rt.allocate('u8', [2 ** 27]), { code: 'LPQ_CUDA_MEMORY' });
  for (let i = 0; i < 40; i++) {
    const tensor = rt.allocate('f32', [12 * 2 ** 20]);
    ops.zero(rt, tensor);
    tensor.dispose();
  }
  await rt.sync();
  const memory = rt.memory();
  assert.ok(memory && memory.peakReserved <= 64 * 2 ** 20 && memory.peakUsed >= 48 * 2 ** 20);
});

gpuTest('what fails on the device is told by the next sync, and the queue goes on', async () => {
  const rt = createRuntime({ device: 'cuda:0' });
  const ids = rt.upload(fromTyped('i32', [2], Int32Array.of(1, 9)));
  const table = rt.upload(fromTyped('f32', [4, 2], new Float32Array(8)));
  const y = rt.allocate('f32', [2, 2]);
  ops.embedding(rt, ids, table, y);
  await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT', op: 'embedding' });
  ops.zero(rt, y);
  assert.deepEqual([...(await readTyped(rt, y))], [0, 0, 0, 0]);
  ops.add(rt, y, allocate('f32', [2, 2]), y);
  await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT' });
  assert.equal(typed(await rt.download(y))[3], 0);
});
