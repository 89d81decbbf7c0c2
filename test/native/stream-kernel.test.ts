import { testHostProgram } from './host-program.js';

// The kernel's source, with every thread, warp and cluster played by the host.
testHostProgram('the streaming kernel on a simulated device: every type, f16 and bf16, every way of cutting', {
  sources: ['stream-kernel.cpp', 'simulator/simulator.cpp'],
  includes: ['test/native/simulator'],
  prints: /^576 products, 0 failures, at most 0\.\d\d of the bound$/m,
});
