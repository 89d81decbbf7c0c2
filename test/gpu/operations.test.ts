import { gpus, gpuTest } from './gpu.js';

/**
 * The tests of operations against their definitions in double precision, on a device: the same as on the CPU (test/native), with bounds of
 * sums in f32.
 */
if (gpus.length > 0) {
  process.env.LPQ_TEST_OPERATIONS = 'cuda:0';
  await import('../native/alternating-ops.test.js');
  await import('../native/backward.test.js');
  await import('../native/divergence.test.js');
  await import('../native/more-backward.test.js');
  await import('../native/recurrent-backward.test.js');
  await import('../native/recurrent-ops.test.js');
  await import('../native/scan-backward.test.js');
  await import('../native/selected-ops.test.js');
  await import('../native/streams-ops.test.js');
  await import('../native/w4ax.test.js');
} else gpuTest('operations against double precision', () => {});
