import { ALL } from '../sample.js';
import { testHostProgram } from './host-program.js';

testHostProgram('the kernel of W4Ax on a simulated device: tiles, late boxes and products', {
  sources: ['act-kernel.cpp', 'simulator/simulator.cpp'],
  includes: ['test/native/simulator'],
  options: ALL ? ['-DLPQ_ALL_FORMS'] : [],
  prints: /^\d+ products, 0 failures, at most 0\.\d\d of the bound$/m,
});
