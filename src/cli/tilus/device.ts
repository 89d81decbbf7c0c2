import { addon, type MeasuredRuntime } from '../../../native/binding.js';
import { LpqError } from '../../core/error.js';
import { chooseDevice } from '../options/device.js';
import { openRuntime, type Run } from '../run.js';

type Gpu = ReturnType<ReturnType<typeof addon>['cudaDevices']>[number];

/** The CUDA device of --device, and what the driver says of it. Throws LPQ_USAGE for the CPU, LPQ_DEVICE. */
export function openDevice(run: Run, device: string): { readonly rt: MeasuredRuntime; readonly gpu: Gpu } {
  if (chooseDevice(device) === 'cpu')
    throw new LpqError('LPQ_USAGE', 'programs are compiled for a CUDA device', {
      got: `--device ${device}`,
      expected: 'cuda or cuda:N',
    });
  const rt = openRuntime(run, { device });
  return { rt, gpu: addon().cudaDevices()[Number(rt.device.slice('cuda:'.length))]! };
}
