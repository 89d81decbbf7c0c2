import type { ErrorFacts } from '../../core/error.js';
import { LpqError } from '../../core/error.js';

/** What to do about the codes of native/cuda. */
const CUDA = {
  LPQ_CUDA: { what: 'the CUDA driver reports an error', hint: 'Try again; if it repeats, use --device cpu.' },
  LPQ_CUDA_DRIVER: {
    what: 'no usable NVIDIA driver',
    hint: 'Install an NVIDIA driver for CUDA 12 or newer, or use --device cpu.',
  },
  LPQ_CUDA_KERNELS: {
    what: 'the CUDA kernels cannot be used',
    hint: 'Run npm run build:cuda (needs nvcc 12 or newer), or use --device cpu.',
  },
  LPQ_CUDA_LIBRARY: {
    what: 'a CUDA library cannot be used',
    hint: 'Install the CUDA toolkit or pip install nvidia-cublas nvidia-cusolver, and name their folders in LPQ_CUDA_LIBS (separated by colons).',
  },
  LPQ_CUDA_LOST: {
    what: 'the CUDA device stopped working',
    hint: 'Look at nvidia-smi and the kernel log (dmesg, Xid) until the device answers again.',
  },
  LPQ_CUDA_MEMORY: {
    what: 'there is not enough device memory',
    hint: 'Close other programs on the device, use fewer or shorter calibration sequences (--samples, --seq-len), or --device cpu; a higher --vram-limit helps only if the device has more.',
  },
  LPQ_HOST_MEMORY: {
    what: 'there is not enough pinned host memory',
    hint: 'Raise --vram-limit so that more stays on the device, raise ulimit -l, or use fewer or shorter calibration sequences.',
  },
} as const;

/** What the sentences of native/cuda say was found and what would have done. */
const FACTS: readonly (readonly [RegExp, (found: readonly string[]) => ErrorFacts])[] = [
  [/ speaks (CUDA [\d.]+), lpq needs (CUDA .+)$/, ([, got, expected]) => ({ got, expected })],
  [/ has compute capability ([\d.]+); lpq needs (.+)$/, ([, got, expected]) => ({ got, expected })],
  [
    /no room for (\d+ MiB) on \S+ (\d+ MiB) are in use, (\d+ MiB) reserved, the limit is (\d+ MiB)/,
    ([, asked, used, reserved, limit]) => ({
      got: `${asked} requested, ${used} in use, ${reserved} reserved`,
      expected: `at most ${limit} in all`,
    }),
  ],
  [
    /^(lib.+) was not found; looked in (.+?)(?:;|$)/,
    ([, expected, looked]) => ({ got: `none in ${looked}`, expected }),
  ],
  [/\((CUDA_ERROR_\w+)\)$/, ([, got]) => ({ got })],
];

/** A failure of native/cuda as the error that the user sees. */
export function cudaError(code: string, error: Error & { op?: string }): LpqError {
  const { message } = error;
  const facts = factsOf(message);
  if (code === 'LPQ_CUDA_DEVICE')
    return new LpqError('LPQ_DEVICE', message, {
      ...facts,
      cause: error,
      hint: 'Use --device cpu, or another device; lpq doctor lists them.',
    });
  const known = code in CUDA ? (code as keyof typeof CUDA) : 'LPQ_CUDA';
  const { what, hint } = CUDA[known];
  const where = error.op ? ` in the operation ${error.op}` : '';
  return new LpqError(known, `${what}${where}: ${message}`, { ...facts, cause: error, hint });
}

function factsOf(message: string): ErrorFacts {
  for (const [pattern, facts] of FACTS) {
    const found = pattern.exec(message);
    if (found) return facts(found);
  }
  return {};
}
