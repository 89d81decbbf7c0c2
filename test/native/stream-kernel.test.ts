import { sampled } from '../sample.js';
import { testHostProgram } from './host-program.js';

const RANGES = [
  { from: 1, to: 2, products: 60 },
  { from: 3, to: 4, products: 128 },
  { from: 5, to: 6, products: 164 },
  { from: 7, to: 8, products: 224 },
];

// The kernel's source, with every thread, warp and cluster played by the host: one quarter of the types a commit.
for (const { from, to, products } of sampled('the streaming kernel on the host', RANGES, 4))
  testHostProgram(
    `the streaming kernel on a simulated device: types of ${from} to ${to} bits, f16 and bf16, every way of cutting`,
    {
      sources: ['stream-kernel.cpp', 'simulator/simulator.cpp'],
      includes: ['test/native/simulator'],
      options: [`-DLPQ_BITS_FROM=${from}`, `-DLPQ_BITS_TO=${to}`],
      prints: new RegExp(`^${products} products, 0 failures, at most 0\\.\\d\\d of the bound$`, 'm'),
    },
  );
