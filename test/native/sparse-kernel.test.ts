import { testHostProgram } from './host-program.js';

testHostProgram("the kernel of Sparse-MARLIN's layout runs on a multiprocessor of fibers", {
  sources: ['sparse-kernel.cpp'],
  // It has headers of the same names as the instructions' own.
  includes: ['test/native/fake-device'],
  // Optimising takes longer than it saves.
  options: ['-O0'],
  prints: /^\d{6} checks, 0 failures$/m,
});
