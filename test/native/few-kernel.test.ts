import { testHostProgram } from './host-program.js';

testHostProgram('W4Ax of few tokens runs on a multiprocessor of fibers: sums by warps, in their order, bit by bit', {
  sources: ['few-kernel.cpp'],
  // It has headers of the same names as the instructions' own.
  includes: ['test/native/fake-device'],
  options: ['-O0', ...(process.env.LPQ_ALL_FORMS === '1' ? ['-DLPQ_ALL_FORMS'] : [])],
  prints: /^\d+ checks, 0 failures$/m,
});
