import assert from 'node:assert/strict';
import { test } from 'node:test';
import { presentGpus } from '../../../../src/cli/doctor/examination.js';

const gpu = (name: string, computeCapability: string) => ({ name, memoryMiB: 1024, driver: '580', computeCapability });

test('doctor says which GPUs have no INT4 tensor core', () => {
  assert.equal(presentGpus([gpu('A100', '8.0'), gpu('L40', '8.9')]).cost, undefined);
  const hopper = presentGpus([gpu('A100', '8.0'), gpu('H200', '9.0'), gpu('H200', '9.0')]);
  assert.match(hopper.cost!, /^sm_90: no INT4 tensor core/);
  assert.match(hopper.found, /A100 \(1\S* \S+, sm_80\), H200/);
});
