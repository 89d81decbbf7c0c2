import assert from 'node:assert/strict';
import { gpus, gpuTest } from './gpu.js';

gpuTest('the driver names its GPUs', () => {
  for (const { name, arch, memory } of gpus) {
    assert.match(name, /\S/);
    assert.ok(arch >= 80, `${name} is sm_${arch}; the kernels need sm_80`);
    assert.ok(memory > 1e9, `${name} has ${memory} bytes`);
  }
});
