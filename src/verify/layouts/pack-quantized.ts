import type { PackedModule } from '../../../formats/artifact/schema.js';
import type { TensorReader } from '../../../formats/safetensors/read.js';
import { typed } from '../../../native/binding.js';
import { groupCount } from '../../core/granularity.js';
import type { Decoded } from '../decode.js';
import { firstWrong, problem } from '../decode-scales.js';
import { isSymmetric, type VerifiedLayout } from '../layout.js';
import { decodeStream } from '../native.js';
import { decodeStreams, type Streams, streamProblems, wordsFor } from '../streams.js';

const NAME = 'compressed-tensors';

const streams: Streams = {
  names: { codes: 'weight_packed', scales: 'weight_scale', zeros: 'weight_zero_point', group: 'weight_g_idx' },
  turned: false,
  zeroBias: 0,
  codes: decodeStream('ct'),
};

/** Integers of compressed-tensors: streams along rows. */
export const packQuantized: VerifiedLayout = {
  name: NAME,
  wholeWords: true,
  compressed: { format: 'pack-quantized' },
  problems: (module) => streamProblems(NAME, module),

  tensors(module) {
    const [n, k] = module.shape;
    const groups = groupCount(module.granularity, k);
    return [
      { suffix: 'weight_packed', dtypes: ['I32'], shape: [n, wordsFor(module, k)] },
      { suffix: 'weight_scale', dtypes: ['F16', 'BF16', 'F32'], shape: [n, groups] },
      { suffix: 'weight_shape', dtypes: ['I64'], shape: [2] },
      ...(isSymmetric(module)
        ? []
        : [{ suffix: 'weight_zero_point', dtypes: ['I32'], shape: [wordsFor(module, n), groups] }]),
      ...(module.canonical.g_idx ? [{ suffix: 'weight_g_idx', dtypes: ['I32'], shape: [k] }] : []),
    ];
  },

  async decode(rt, weights, name, module, decoded) {
    await decodeStreams(streams, rt, weights, name, module, decoded);
    checkShape(weights, name, module, decoded);
  },
};

function checkShape(weights: TensorReader, name: string, module: PackedModule, decoded: Decoded): void {
  const stored = weights.tensor(`${name}.weight_shape`);
  const values = [...typed<BigInt64Array>(stored)].map(Number);
  stored.dispose();
  const wrong = firstWrong(values, 2, (i) => module.shape[i] as number);
  problem(decoded, `${name}.weight_shape`, 'the stored shape is not the module’s', wrong);
}
