import { createRuntime, type NativeRuntime } from '../../native/binding.js';
import { LpqError } from '../core/error.js';

export type Device = { readonly kind: 'cpu' } | { readonly kind: 'cuda'; readonly index: number };

/** --device: auto takes the best there is. Throws LPQ_USAGE for what is no device, LPQ_DEVICE for one that is not there. */
export function chooseDevice(wish: string): Device {
  if (wish === 'auto' || wish === 'cpu') return { kind: 'cpu' };
  if (!/^cuda(:\d+)?$/.test(wish))
    throw new LpqError('LPQ_USAGE', `--device takes no '${wish}'`, { got: wish, expected: 'auto, cpu, cuda or cuda:N' });
  throw new LpqError('LPQ_DEVICE', `--device ${wish} is not available: this build of lpq computes on the CPU`, {
    got: wish,
    expected: 'cpu',
    hint: 'Use --device cpu, or leave the option out.',
  });
}

/** A queue on the chosen device. */
export function openRuntime(options: { device: string; threads: number | undefined }): NativeRuntime {
  chooseDevice(options.device);
  return createRuntime(options.threads);
}
