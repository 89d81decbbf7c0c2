import { testHostProgram } from './host-program.js';

testHostProgram('attention and its gradient on a simulated device', {
  sources: ['attention-backward-kernel.cpp', 'simulator/simulator.cpp'],
  includes: ['test/native/simulator', 'test/native'],
  prints: /^14 gradients, 0 failures, at most 0\.\d\d of the bound$/m,
});
