import { groupCount } from '../../core/granularity.js';
import { quantType } from '../../core/quant-type.js';
import type { VerifiedLayout } from '../layout.js';
import { decodeStream } from '../native.js';
import { decodeStreams, type Streams, streamProblems, wordsFor } from '../streams.js';

function gptqLayout(name: string, zeroBias: 0 | 1): VerifiedLayout {
  const streams: Streams = {
    names: { codes: 'qweight', scales: 'scales', zeros: 'qzeros', group: 'g_idx' },
    turned: true,
    zeroBias,
    codes: decodeStream('gptq'),
  };
  return {
    name,

    *problems(module) {
      yield* streamProblems(name, module);
      const { bits } = quantType(module.type);
      if (![2, 3, 4, 8].includes(bits)) yield `layout ${name} has no ${bits}-bit codes`;
    },

    tensors(module) {
      const [n, k] = module.shape;
      const groups = groupCount(module.granularity, k);
      return [
        { suffix: 'qweight', dtypes: ['I32'], shape: [wordsFor(module, k), n] },
        { suffix: 'qzeros', dtypes: ['I32'], shape: [groups, wordsFor(module, n)] },
        { suffix: 'scales', dtypes: ['F16'], shape: [groups, n] },
        { suffix: 'g_idx', dtypes: ['I32'], shape: [k] },
      ];
    },

    decode: (...args) => decodeStreams(streams, ...args),
  };
}

/** v1 stores z - 1 without a borrow into its neighbours; adding modulo 2^b undoes it for every z. */
export const gptq = gptqLayout('gptq', 1);

/** Zero points as they are. */
export const gptqV2 = gptqLayout('gptq_v2', 0);
