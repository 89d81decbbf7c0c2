import assert from 'node:assert/strict';
import path from 'node:path';
import { addon, createRuntime } from '../../native/binding.js';
import { shareDirectory } from '../../src/calibrate/bundled.js';
import { GPTQ_DEFAULTS } from '../../src/gptq/options.js';
import { gptqQuantizer } from '../../src/gptq/quantizer.js';
import { scratch } from '../src/cli/lpq.js';
import { partsAlike } from '../src/gptq/parts.js';
import { ARCHITECTURES } from '../src/model/fixtures.js';
import { quantizeOver, sequences } from '../src/quantize/over-devices.js';
import { gpuTest } from './gpu.js';

const MODELS = {
  'tiny-llama': { home: shareDirectory(), vocab: 2048, group: 64 },
  qwen3_moe: { home: ARCHITECTURES, vocab: 64, group: 32 },
};

// Runtimes of one device stand in for those that the host lacks: each has streams, memory and libraries of its own.
for (const [name, { home, vocab, group }] of Object.entries(MODELS))
  gpuTest(`one, two and four devices give the same bytes: ${name}`, async (t) => {
    const dir = scratch(t);
    const there = addon().cudaDevices().length;
    const list = sequences(64, 256).map((tokens) => tokens.map((id) => id % vocab));
    const made = [];
    for (const count of [1, 2, 4]) {
      const rts = Array.from({ length: count }, (_, i) => createRuntime({ device: `cuda:${i % there}` }));
      const [source, output] = [path.join(home, name), path.join(dir, `${count}`)];
      made.push((await quantizeOver(rts, source, output, list, gptqQuantizer(GPTQ_DEFAULTS), group)).hashes);
    }
    assert.ok(Object.keys(made[0] ?? {}).length > 0);
    for (const other of made.slice(1)) assert.deepEqual(other, made[0]);
  });

gpuTest('rows that another device solves have the bytes that they have among all', async () => {
  const rt = createRuntime({ device: 'cuda:0' });
  await partsAlike(rt, 3072, 256, 1024);
  // Few rows and long sums, which cuBLAS would split among blocks.
  await partsAlike(rt, 4096, 14336, 2048);
});
