import { testHostProgram } from './host-program.js';

testHostProgram('what FMPQ decides by, on a simulated device', {
  sources: ['search-kernel.cpp', 'simulator/simulator.cpp'],
  includes: ['test/native/simulator', 'test/native'],
  prints: /^39 checks, 0 failures$/m,
});
