import { ALL } from '../sample.js';
import { testHostProgram } from './host-program.js';

testHostProgram('W4Ax of few tokens runs on a simulated device: sums by warps, in their order, bit by bit', {
  sources: ['few-kernel.cpp', 'simulator/simulator.cpp'],
  includes: ['test/native/simulator'],
  options: ALL ? ['-DLPQ_ALL_FORMS'] : [],
  prints: /^\d+ checks, 0 failures$/m,
});
