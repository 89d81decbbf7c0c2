import { allocate, type Tensor } from '../../../native/binding.js';
import { groupCount } from '../../core/granularity.js';
import { quantType } from '../../core/quant-type.js';
import { constantZeros, storedScales } from '../decode-scales.js';
import { inPlaceProblems, isOutside, storedForm, type VerifiedLayout } from '../layout.js';
import { settle, transpose, unpackAwq } from '../native.js';

/** AWQ (GEMM): nibbles of eight output features a word. */
export const awq: VerifiedLayout = {
  name: 'awq',

  *problems(module) {
    const { scales, zeros } = module;
    const type = quantType(module.type);
    yield* inPlaceProblems('awq', module);
    if (type.kind !== 'int' || type.bits !== 4) yield `layout awq has no ${type.name} codes`;
    if (!['f16', 'bf16'].includes(scales.dtype) || scales.global || scales.block[0] !== 1)
      yield 'layout awq has plain f16 or bf16 scales for each row';
    if (zeros.kind === 'float') yield 'layout awq has no float zero points';
    const { zero } = storedForm(module);
    if (isOutside(zero, 4)) yield `a zero point of ${zero} is outside the stored range`;
    if (module.shape[0] % 8 !== 0) yield `layout awq needs N % 8 = 0, not ${module.shape[0]}`;
  },

  tensors({ shape: [n, k], granularity }) {
    const groups = groupCount(granularity, k);
    return [
      { suffix: 'qweight', dtypes: ['I32'], shape: [k, n / 8] },
      { suffix: 'qzeros', dtypes: ['I32'], shape: [groups, n / 8] },
      { suffix: 'scales', dtypes: ['F16'], shape: [groups, n] },
    ];
  },

  async decode(rt, weights, name, module, decoded) {
    const [n, k] = module.shape;
    const { flip, zero } = storedForm(module);
    const [qweight, qzeros, stored] = ['qweight', 'qzeros', 'scales'].map((part) =>
      weights.tensor(`${name}.${part}`),
    ) as [Tensor, Tensor, Tensor];
    const codes = allocate('u8', [n, Math.ceil(k / 2)]);
    unpackAwq(rt, qweight, codes, { stream: 1, flip });
    const dtype = module.zeros.kind === 'int' ? module.zeros.dtype : 'i16';
    const zeros = allocate(dtype, [n, groupCount(module.granularity, k)]);
    unpackAwq(rt, qzeros, zeros, { bias: flip });
    const scales = transpose(rt, stored);
    await settle(rt);
    for (const tensor of [qweight, qzeros, stored]) tensor.dispose();
    decoded.parts.set('codes', codes);
    decoded.parts.set('scales', await storedScales(rt, `${name}.scales`, module, decoded, scales));
    if (zero === undefined) decoded.parts.set('zeros', zeros);
    else constantZeros(decoded, `${name}.qzeros`, zeros, zero - flip);
  },
};
