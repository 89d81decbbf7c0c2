import { ALL } from '../sample.js';
import { testHostProgram } from './host-program.js';

// LPQ_TEST_ALL=1: every kernel that is compiled.
const options = ALL ? ['-DLPQ_ALL_FORMS'] : [];

// Bounds are sums of the worst cases of every rounding; what comes out errs by a hundredth of them, and may not by a thirtieth.
testHostProgram('attention over packed keys and values, of one query and of many, on a simulated device', {
  sources: ['attention-kernel.cpp', 'simulator/simulator.cpp'],
  includes: ['test/native/simulator', 'test/native'],
  options,
  prints: /^\d+ caches, 0 failures, at most 0\.0[0-2]\d\d of the bound$/m,
});

testHostProgram('packing keys and values, and appending to them, on a simulated device', {
  sources: ['attention-pack.cpp', 'simulator/simulator.cpp'],
  includes: ['test/native/simulator', 'test/native'],
  options,
  prints: /^\d+ packings, 0 failures$/m,
});
