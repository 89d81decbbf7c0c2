import { testHostProgram } from './host-program.js';

testHostProgram("the kernel of MARLIN's and TurboMind's layouts runs on a multiprocessor of fibers", {
  sources: ['stripes.cpp'],
  // It has headers of the same names as the instructions' own.
  includes: ['test/native/fake-device'],
  // LPQ_ALL_FORMS=1: every form with both types of activations, which takes twice as long. Optimising takes longer than it saves.
  options: ['-O0', ...(process.env.LPQ_ALL_FORMS === '1' ? ['-DLPQ_ALL_FORMS'] : [])],
  prints: /^\d{6} checks, 0 failures$/m,
});
