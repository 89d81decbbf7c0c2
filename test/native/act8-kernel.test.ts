import { ALL } from '../sample.js';
import { testHostProgram } from './host-program.js';

testHostProgram('the kernel of 8-bit activations on a simulated device: every kind and form, shared items, clusters', {
  sources: ['act8-kernel.cpp', 'simulator/simulator.cpp'],
  includes: ['test/native/simulator'],
  options: ALL ? ['-DLPQ_ALL_FORMS'] : [],
  prints: /^\d+ products, 0 failures, at most 0\.\d\d of the bound$/m,
});
