import { type TestContext, test } from 'node:test';
import { addon } from '../../native/binding.js';

export interface Gpu {
  readonly name: string;
  /** 10 * major + minor of the compute capability. */
  readonly arch: number;
  /** Bytes. */
  readonly memory: number;
}

type Body = (context: TestContext) => void | Promise<void>;

/** What `npm test` (skip) and `npm run test:gpu` (require) say; without either a test runs where there is a GPU. */
const mode = process.env.LPQ_GPU_TESTS ?? 'auto';

function look(): { readonly gpus: readonly Gpu[]; readonly why: string } {
  const { cudaDevices } = addon() as { cudaDevices?(): Gpu[] };
  if (!cudaDevices) return { gpus: [], why: 'this build has no CUDA backend' };
  try {
    const gpus = cudaDevices();
    return { gpus, why: gpus.length > 0 ? '' : 'the driver lists no GPU' };
  } catch (error) {
    return { gpus: [], why: (error as Error).message };
  }
}

/** The GPUs of this machine, and why there is none. */
export const { gpus, why: whyNoGpu } = look();

/**
 * A test that needs `count` GPUs. `npm test` skips it and says so; under `npm run test:gpu` the lack of any GPU fails it,
 * so that a run there never passes by testing nothing. A machine with fewer than `count` skips in either case.
 */
export function gpuTest(name: string, body: Body, count = 1): void {
  if (mode === 'skip') test(name, { skip: 'GPU tests run with npm run test:gpu' }, body);
  else if (gpus.length >= count) test(name, body);
  else if (mode === 'require' && gpus.length === 0)
    test(name, () => {
      throw new Error(`no GPU: ${whyNoGpu}`);
    });
  else
    test(name, { skip: gpus.length === 0 ? `no GPU: ${whyNoGpu}` : `needs ${count} GPUs, has ${gpus.length}` }, body);
}
