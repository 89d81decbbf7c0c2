import { testHostProgram } from './host-program.js';

testHostProgram("norms' gradients on a simulated device", {
  sources: ['backward-norms-kernel.cpp', 'simulator/simulator.cpp'],
  includes: ['test/native/simulator', 'test/native'],
  prints: /^60 gradients, 0 failures, at most 0\.\d\d of the bound$/m,
});
