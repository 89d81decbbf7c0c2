import { testHostProgram } from './host-program.js';

testHostProgram("the kernel of Sparse-MARLIN's layout runs on a simulated device", {
  sources: ['sparse-kernel.cpp', 'simulator/simulator.cpp'],
  includes: ['test/native/simulator'],
  prints: /^\d{6} checks, 0 failures$/m,
});
