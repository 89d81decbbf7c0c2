import { ALL } from '../sample.js';
import { testHostProgram } from './host-program.js';

testHostProgram("the kernel of MARLIN's and TurboMind's layouts runs on a simulated device", {
  sources: ['stripes.cpp', 'simulator/simulator.cpp'],
  includes: ['test/native/simulator'],
  // LPQ_TEST_ALL=1: every form with both types of activations, which takes twice as long.
  options: ALL ? ['-DLPQ_ALL_FORMS'] : [],
  prints: /^\d{6} checks, 0 failures$/m,
});
