import { testHostProgram } from './host-program.js';

// Bounds are sums of the worst cases of every rounding; what comes out errs by a hundredth of them, and may not by a tenth.
testHostProgram('attention over packed keys and values, and packing, on threads that the host plays', {
  sources: ['attention-kernel.cpp', 'simt/simt.cpp'],
  includes: ['test/native/simt', 'test/native'],
  prints: /^26 caches, 0 failures, at most 0\.0\d of the bound$/m,
});
