// Run by arguments.test.ts under the fake driver: what the CUDA backend says of every wrong call, as JSON.
import { createRuntime } from '../../../native/binding.js';
import { refusals } from '../argument-refusals.js';

process.stdout.write(JSON.stringify(await refusals(createRuntime({ device: 'cuda:0' }))));
