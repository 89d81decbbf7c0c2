import { sampled } from '../sample.js';
import { testHostProgram } from './host-program.js';

const RANGES = [
  { from: 1, to: 3, products: 24 },
  { from: 4, to: 4, products: 78 },
  { from: 5, to: 8, products: 106 },
];

// The kernels' source, with every thread, warp, box and product played by the host: one third of the types a commit.
for (const { from, to, products } of sampled('the kernels of experts on the host', RANGES, 3))
  testHostProgram(
    `the kernels of experts on a simulated device: types of ${from} to ${to} bits, f16 and bf16, experts of 0 to 100 rows, shared items`,
    {
      sources: ['experts-kernel.cpp', 'simulator/simulator.cpp'],
      includes: ['test/native/simulator'],
      options: [`-DLPQ_BITS_FROM=${from}`, `-DLPQ_BITS_TO=${to}`],
      prints: new RegExp(`^${products} products, 0 failures, at most 0\\.\\d\\d of the bound$`, 'm'),
    },
  );
