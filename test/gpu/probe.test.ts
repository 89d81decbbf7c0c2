import assert from 'node:assert/strict';
import { allocate, createRuntime, typed } from '../../native/binding.js';
import { declaredMaps } from '../src/layout/fragment-maps.js';
import { gpus, gpuTest } from './gpu.js';

gpuTest('registers of ldmatrix and of every mma hold what the layouts say', async () => {
  const rt = createRuntime({ device: 'cuda:0' });
  for (const [name, map] of Object.entries(declaredMaps())) {
    const [instruction, operand = ''] = name.split(' ');
    if (instruction!.startsWith('wgmma') && gpus[0]!.arch !== 90) continue;
    const shape = [map.length, map[0]!.length, map[0]![0]!.length];
    const found = rt.upload(allocate('i32', shape));
    rt.enqueue('probe_map', [], [found], { instruction: instruction!, operand });
    const host = await rt.download(found);
    assert.deepEqual([...typed<Int32Array>(host)], map.flat(2), name);
  }
});
