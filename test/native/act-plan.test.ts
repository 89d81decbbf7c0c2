import { testHostProgram } from './host-program.js';

testHostProgram('cuts of products of low-bit activations: every step once, and who is waited for comes', {
  sources: ['act-plan.cpp'],
  prints: /^0 failures$/m,
});
