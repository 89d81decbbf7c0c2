import { ALL } from '../sample.js';
import { testHostProgram } from './host-program.js';

testHostProgram('W4Ax without wgmma runs on a simulated device: the CPU chain of sums, cuts by cost', {
  sources: ['mixed-kernel.cpp', 'simulator/simulator.cpp'],
  includes: ['test/native/simulator'],
  options: ALL ? ['-DLPQ_ALL_FORMS'] : [],
  prints: /^\d+ checks, \d+ shared steps, 0 failures$/m,
});
