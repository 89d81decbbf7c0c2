import { testHostProgram } from './host-program.js';

testHostProgram('W4Ax without wgmma runs on a multiprocessor of fibers: the CPU chain of sums, cuts by cost', {
  sources: ['mixed-kernel.cpp'],
  // It has headers of the same names as the instructions' own.
  includes: ['test/native/fake-device'],
  options: ['-O0', ...(process.env.LPQ_ALL_FORMS === '1' ? ['-DLPQ_ALL_FORMS'] : [])],
  prints: /^\d+ checks, \d+ shared steps, 0 failures$/m,
});
