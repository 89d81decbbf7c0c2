import { packQuantizedTensors } from '../../../formats/compressed-tensors/layout.js';
import { tokens } from '../../../formats/compressed-tensors/schemes.js';
import { allocate, fromTyped, type Tensor } from '../../../native/binding.js';
import { groupCount } from '../../core/granularity.js';
import { allPacked, pack } from '../../layout/engine.js';
import { type CompressedLayout, SCALE_DTYPES } from '../compressed.js';
import { hasForm, type IntegerForm, integerForm, noForm } from '../integer-form.js';
import { exactFit } from '../layout.js';
import { groupIndex, offsetZeros } from '../operands.js';
import { rowStreams, transposedColumnStreams, wholeWordColumns, wholeWordRows } from './stream.js';

/** Offset integers of 1 to 8 bits as dense bitstreams; in whole words where the module came from such a file. */
export const packQuantized: CompressedLayout = {
  name: 'compressed-tensors',

  fit(name, module, facts) {
    const form = integerForm(module, facts);
    if (!hasForm(form)) return form;
    const scaleDtype = SCALE_DTYPES[module.scales.dtype];
    if (!scaleDtype) return noForm(`its scales are ${module.scales.dtype}`, 'Quantize it with f16 or bf16 scales.');
    const tensors = packQuantizedTensors(name, {
      bits: form.bits,
      shape: module.shape,
      granularity: module.granularity,
      symmetric: form.symmetric,
      scaleDtype,
      groupIndex: module.groupIndex,
      packing: module.packing,
    });
    return { ...exactFit(name, module, tensors), ...(module.packing && { packing: module.packing }) };
  },

  scheme(module) {
    const { bits, symmetric } = integerForm(module, { zeroRange: [0, 0] }) as IntegerForm;
    const { granularity } = module;
    return {
      format: 'pack-quantized',
      bits,
      type: 'int',
      symmetric,
      strategy: granularity.kind,
      groupSize: granularity.kind === 'group' ? granularity.size : null,
      actorder: module.groupIndex ? 'group' : null,
    };
  },

  async pack(operands, fit) {
    const { rt, module, codes, scales } = operands;
    const form = integerForm(module, { zeroRange: [0, 0] }) as IntegerForm;
    const [n, k] = module.shape;
    const { bits, bias } = form;
    const shapeOf = (suffix: string) => fit.tensors.find((tensor) => tensor.suffix === suffix)?.shape;
    const packed = allocate('i32', shapeOf('weight_packed')!);
    const whole = module.packing === 'whole';
    pack(rt, (whole ? wholeWordRows : rowStreams)(n, k, bits), codes, packed, { streamColumns: k, bias });
    const out = new Map<string, Tensor>([
      ['weight_packed', packed],
      ['weight_scale', scales.view(scales.shape)],
      ['weight_shape', fromTyped('i64', [2], BigInt64Array.of(BigInt(n), BigInt(k)))],
    ]);
    const zeroShape = shapeOf('weight_zero_point');
    if (zeroShape) {
      const zeros = offsetZeros(operands, form);
      const zeroPoint = allocate('i32', zeroShape);
      const layout = (whole ? wholeWordColumns : transposedColumnStreams)(n, groupCount(module.granularity, k), bits);
      pack(rt, layout, zeros, zeroPoint);
      zeros.dispose();
      out.set('weight_zero_point', zeroPoint);
    }
    if (shapeOf('weight_g_idx')) out.set('weight_g_idx', groupIndex(operands));
    await allPacked(rt);
    return out;
  },

  memory: { bits: [1, 2, 3, 4, 5, 6, 7, 8], unit: [1, 32], of: rowStreams },
};

/** 4 bits with FP8 activations, one scale per token: groups of 128, as its kernels require. */
export const packQuantizedW4A8: CompressedLayout = {
  ...packQuantized,

  fit(name, module, facts) {
    const form = integerForm(module, facts);
    if (!hasForm(form)) return form;
    if (form.bits !== 4) return noForm(`it has ${form.bits} bits and W4A8 has 4`, 'Quantize it with --bits 4.');
    if (!form.symmetric) return noForm('W4A8 kernels have no zero points', 'Quantize it without --asym.');
    if (module.granularity.kind !== 'group' || module.granularity.size !== 128 || module.groupIndex)
      return noForm('W4A8 kernels read groups of 128 columns in order', 'Quantize it with --group-size 128.');
    return packQuantized.fit(name, module, facts);
  },

  scheme: (module) => ({ ...packQuantized.scheme(module), activations: tokens(8, 'float') }),
};
