import { testHostProgram } from './host-program.js';

testHostProgram('fast casts: every type, f16 and bf16, every code in every position of a chunk', {
  sources: ['casts.cpp'],
  prints: /^14163968 checks, 0 failures$/m,
});
