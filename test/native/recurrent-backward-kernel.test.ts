import { testHostProgram } from './host-program.js';

testHostProgram('gradients of layers with a state on a simulated device', {
  sources: ['recurrent-backward-kernel.cpp', 'simulator/simulator.cpp'],
  includes: ['test/native/simulator', 'test/native'],
  prints: /^80 gradients, 0 failures, at most 0\.\d\d of the bound$/m,
});
