import { LpqError } from '../core/error.js';

/** Checks --device; auto is the best there is. Throws LPQ_USAGE for what is no device, LPQ_DEVICE for one that is not there. */
export function chooseDevice(wish: string): 'cpu' {
  if (wish === 'auto' || wish === 'cpu') return 'cpu';
  if (!/^cuda(:\d+)?$/.test(wish))
    throw new LpqError('LPQ_USAGE', `--device does not take '${wish}'`, {
      got: wish,
      expected: 'auto, cpu, cuda or cuda:N',
    });
  throw new LpqError('LPQ_DEVICE', `--device ${wish} is not available: this build of lpq computes on the CPU`, {
    got: wish,
    expected: 'auto or cpu',
    hint: 'Use --device cpu, or leave the option out.',
  });
}
