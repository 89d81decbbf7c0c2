import assert from 'node:assert/strict';
import { createRuntime, fromTyped } from '../../native/binding.js';
import { typeNamed } from '../src/tilus/direct.js';
import { gpus, gpuTest } from './gpu.js';
import {
  BYTES,
  dequantizeTwin,
  FORMS,
  fragmentsTwin,
  hopperTwins,
  matmulTwin,
  sumTwin,
  transformTwin,
} from './tilus/cases.js';
import { compareTwins, nvcc, type Twin, TYPES } from './tilus/device.js';

const SMALL_INTEGERS = TYPES.filter((T) => typeNamed(T).kind === 'int' && T !== 'u8');

gpuTest(
  'transform, dequantize and matmul of every type and shape: compiled on the device as in the interpreter',
  async (t) => {
    if (nvcc === undefined) return t.skip('SKIPPED: nvcc was not found');
    const twins: Twin[] = [];
    for (const [seed, T] of TYPES.entries())
      for (const form of SMALL_INTEGERS.includes(T) ? [...FORMS, BYTES] : FORMS) {
        const { twin, tiles, codes } = transformTwin(T, form, seed + 1);
        twins.push(twin);
        if (form !== BYTES) twins.push(dequantizeTwin(T, form, tiles));
        // Of numbers whose products f16 and f32 hold.
        const small = typeNamed(T).kind === 'float' ? transformTwin(T, form, seed + 1, 256) : { tiles, codes };
        twins.push(matmulTwin(T, form, small.tiles, small.codes));
      }
    t.diagnostic(`${twins.length} launches of ${TYPES.length} types`);
    assert.deepEqual(await compareTwins('types', twins), []);
  },
);

gpuTest('sums of parts, and the order of MARLIN and TurboMind', async (t) => {
  if (nvcc === undefined) return t.skip('SKIPPED: nvcc was not found');
  const twins = [sumTwin(), fragmentsTwin(4, {}), fragmentsTwin(4, { RM: 2, X: 'bf16' }), fragmentsTwin(2, {})];
  assert.deepEqual(await compareTwins('others', twins), []);
});

gpuTest('programs of sm_90: TMA, barriers and wgmma', async (t) => {
  if (nvcc === undefined) return t.skip('SKIPPED: nvcc was not found');
  if (gpus[0]!.arch !== 90) return t.skip('SKIPPED: the device has no wgmma');
  const cases = [
    ['u3', { BM: 64, STAGES: 2 }],
    ['i4', { BM: 32, STAGES: 3, RK: 2 }],
    ['u8', { BM: 128, STAGES: 4, SPLIT: 3, O: 'f32' }],
    ['f6e3m2', { BM: 8, STAGES: 5 }],
  ] as const;
  const twins = cases.flatMap(([T, settings]) => (TYPES.includes(T) ? hopperTwins(T, settings) : []));
  assert.deepEqual(await compareTwins('hopper', twins), []);
});

gpuTest('a launch that does not fit is refused by name', async () => {
  const rt = createRuntime({ device: 'cuda:0' });
  const host = fromTyped('u8', [64], new Uint8Array(64));
  const there = rt.upload(host);
  const params = { cubin: '/nowhere.cubin', kernel: 'k', blocks: 1, threads: 32, shared: 0, arguments: [0, 0] };
  const refused = async (change: object, code: string, message: RegExp) => {
    rt.enqueue('launch_program', [there], [], { ...params, ...change });
    await assert.rejects(rt.sync(), { code, message });
  };
  await refused({}, 'LPQ_CUDA_KERNELS', /the cubin \/nowhere\.cubin cannot be read/);
  await refused({ arguments: [0, 1] }, 'LPQ_NATIVE_ARGUMENT', /arguments have a word out of range/);
  await refused({ arguments: [2, 0, 2] }, 'LPQ_NATIVE_ARGUMENT', /arguments end within one/);
  await refused({ shared: 1e6 }, 'LPQ_NATIVE_ARGUMENT', /wants 1000000 bytes of shared memory/);
  there.dispose();
  host.dispose();
});
