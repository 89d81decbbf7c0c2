import { testHostProgram } from './host-program.js';

testHostProgram(
  'the kernels of low-bit activations on threads that the host plays: every kind, late boxes and products',
  {
    sources: ['act-kernel.cpp', 'simt/simt.cpp'],
    includes: ['test/native/simt'],
    options: process.env.LPQ_ALL_FORMS === '1' ? ['-DLPQ_ALL_FORMS'] : [],
    prints: /^\d+ products, 0 failures, at most 0\.\d\d of the bound$/m,
  },
);
