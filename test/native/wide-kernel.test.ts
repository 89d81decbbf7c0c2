import { testHostProgram } from './host-program.js';

// The kernel's source, with every thread, warp, box and product played by the host.
testHostProgram(
  'the wide kernel on a simulated device: every type, f16 and bf16, shared items, late boxes and products',
  {
    sources: ['wide-kernel.cpp', 'simulator/simulator.cpp'],
    includes: ['test/native/simulator'],
    prints: /^563 products, 0 failures, at most 0\.\d\d of the bound$/m,
  },
);
