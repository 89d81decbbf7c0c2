import { testHostProgram } from './host-program.js';

// LPQ_ALL_FORMS=1: every kernel that is compiled. Optimising takes longer than it saves.
const options = ['-O0', ...(process.env.LPQ_ALL_FORMS === '1' ? ['-DLPQ_ALL_FORMS'] : [])];

// Bounds are sums of the worst cases of every rounding; what comes out errs by a hundredth of them, and may not by a thirtieth.
testHostProgram('attention over packed keys and values, of one query and of many, on threads that the host plays', {
  sources: ['attention-kernel.cpp', 'simt/simt.cpp'],
  includes: ['test/native/simt', 'test/native'],
  options,
  prints: /^\d+ caches, 0 failures, at most 0\.0[0-2]\d\d of the bound$/m,
});

testHostProgram('packing keys and values, and appending to them, on threads that the host plays', {
  sources: ['attention-pack.cpp', 'simt/simt.cpp'],
  includes: ['test/native/simt', 'test/native'],
  options,
  prints: /^\d+ packings, 0 failures$/m,
});
