import { testHostProgram } from './host-program.js';

testHostProgram("cuts of MARLIN's and TurboMind's layouts: they fit, the estimate chooses, and what fits is granted", {
  sources: ['stripe-plan.cpp'],
  prints: /^0 failures$/m,
});
