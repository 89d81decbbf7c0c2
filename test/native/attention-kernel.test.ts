import { testHostProgram } from './host-program.js';

// Bounds are sums of the worst cases of every rounding; what comes out errs by a hundredth of them, and may not by a fiftieth.
testHostProgram('attention over packed keys and values, of one query and of many, on threads that the host plays', {
  sources: ['attention-kernel.cpp', 'simt/simt.cpp'],
  includes: ['test/native/simt', 'test/native'],
  prints: /^\d+ caches, 0 failures, at most 0\.0[01]\d\d of the bound$/m,
});

testHostProgram('packing keys and values, and appending to them, on threads that the host plays', {
  sources: ['attention-pack.cpp', 'simt/simt.cpp'],
  includes: ['test/native/simt', 'test/native'],
  prints: /^\d+ packings, 0 failures$/m,
});
