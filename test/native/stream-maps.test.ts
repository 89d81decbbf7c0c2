import { testHostProgram } from './host-program.js';

testHostProgram(
  'maps of the streaming kernel: products of every width through an emulated mma, banks, cuts of the work',
  {
    sources: ['stream-maps.cpp'],
    prints: /^362824 checks, 0 failures$/m,
  },
);
