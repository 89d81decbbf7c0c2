import { ALL } from '../sample.js';
import { testHostProgram } from './host-program.js';

testHostProgram('the kernel of many tokens for devices without wgmma runs on a simulated device', {
  sources: ['large-kernel.cpp', 'simulator/simulator.cpp'],
  includes: ['test/native/simulator'],
  // LPQ_TEST_ALL=1: every width of codes with both types of activations.
  options: ALL ? ['-DLPQ_ALL_FORMS'] : [],
  prints: /^\d{6} checks, 0 failures$/m,
});
