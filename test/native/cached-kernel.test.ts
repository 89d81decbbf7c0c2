import { testHostProgram } from './host-program.js';

testHostProgram('attention over kept rows, on threads that the host plays', {
  sources: ['cached-kernel.cpp', 'simt/simt.cpp'],
  includes: ['test/native/simt', 'test/native'],
  prints: /^10 caches, 0 failures, at most 0\.\d\d of the bound$/m,
});
