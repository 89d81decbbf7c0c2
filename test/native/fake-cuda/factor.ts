// Factors a matrix on cuda:0 and prints what comes of it as JSON: a process of its own, for the driver is loaded once.
import { createRuntime } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { asLpqError } from '../../../src/cli/terminal/failure.js';
import { errorEvent } from '../../../src/cli/terminal/print-error.js';

try {
  const rt = createRuntime({ device: 'cuda:0' });
  ops.cholesky(rt, rt.allocate('f64', [8, 8]), rt.allocate('i32', [1]));
  await rt.sync();
  console.log('{}');
} catch (error) {
  console.log(JSON.stringify(errorEvent(asLpqError(error), false)));
}
