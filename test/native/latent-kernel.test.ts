import { testHostProgram } from './host-program.js';

// Bounds are sums of the worst cases of every rounding; of few tokens a weight's own rounding is most of them.
testHostProgram('attention over packed latents, and packing them, on a simulated device', {
  sources: ['latent-kernel.cpp', 'simulator/simulator.cpp'],
  includes: ['test/native/simulator', 'test/native'],
  prints: /^\d+ checks, 0 failures, at most 0\.[0-3]\d\d\d of the bound$/m,
});
