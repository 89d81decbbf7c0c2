import { testHostProgram } from './host-program.js';

testHostProgram('the kernel of many tokens for devices without wgmma runs on a multiprocessor of fibers', {
  sources: ['large-kernel.cpp'],
  // It has headers of the same names as the instructions' own.
  includes: ['test/native/fake-device'],
  // LPQ_ALL_FORMS=1: every width of codes with both types of activations. Optimising takes longer than it saves.
  options: ['-O0', ...(process.env.LPQ_ALL_FORMS === '1' ? ['-DLPQ_ALL_FORMS'] : [])],
  prints: /^\d{6} checks, 0 failures$/m,
});
