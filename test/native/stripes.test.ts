import { check } from '../../src/tilus/check/check.js';
import { compile } from '../../src/tilus/compile/compile.js';
import { program } from '../../src/tilus/programs.js';
import { ALL } from '../sample.js';
import { testHostProgram } from './host-program.js';

testHostProgram(
  "the kernel of MARLIN's and TurboMind's layouts runs on a simulated device, beside the Tilus program for MARLIN's",
  {
    sources: ['stripes.cpp', 'simulator/simulator.cpp'],
    includes: ['test/native/simulator'],
    headers: {
      'fragments_program.h': () =>
        compile(check(program('fragments'), { settings: { N: 256, K: 256, GROUPS: 2 } }), 'fragments').text,
    },
    // LPQ_TEST_ALL=1: every form with both types of activations, which takes twice as long.
    options: ALL ? ['-DLPQ_ALL_FORMS'] : [],
    prints: /^\d{6} checks, 0 failures$/m,
  },
);
