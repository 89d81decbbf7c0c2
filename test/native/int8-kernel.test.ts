import { ALL } from '../sample.js';
import { testHostProgram } from './host-program.js';

testHostProgram('the kernel of integers on a simulated device: every kind and form, shared items, clusters', {
  sources: ['int8-kernel.cpp', 'simulator/simulator.cpp'],
  includes: ['test/native/simulator'],
  options: ALL ? ['-DLPQ_ALL_FORMS'] : [],
  prints: /^\d+ products, 0 failures$/m,
});
