import { gptqProblem, gptqTensors, type ZeroConvention } from '../../../formats/gptq/layout.js';
import type { Tensor } from '../../../native/binding.js';
import { groupCount } from '../../core/granularity.js';
import { allPacked, pack } from '../../layout/engine.js';
import { halfScalesProblem, hasForm, type IntegerForm, integerForm } from '../integer-form.js';
import { allocateFit, exactFit, type PackLayout } from '../layout.js';
import { groupIndex, halfScales, offsetZeros } from '../operands.js';
import { columnStreams, transposed, transposedRowStreams } from './stream.js';

/** The two conventions share everything but the bias of the zero points. */
function streams(name: string, convention: ZeroConvention): PackLayout {
  return {
    name,

    fit(moduleName, module, facts) {
      const form = integerForm(module, facts);
      if (!hasForm(form)) return form;
      const scales = halfScalesProblem(module, facts, 'GPTQ');
      if (scales) return scales;
      const shape = { bits: form.bits, shape: module.shape, granularity: module.granularity };
      const reason = gptqProblem(shape);
      if (reason) return { reason, remedy: 'Quantize it with --bits 4 or 8, or pack for compressed-tensors.' };
      return exactFit(moduleName, module, gptqTensors(moduleName, shape));
    },

    async pack(operands, fit) {
      const { rt, module, codes } = operands;
      const form = integerForm(module, { zeroRange: [0, 0] }) as IntegerForm;
      const [n, k] = module.shape;
      const { bits, bias } = form;
      const groups = groupCount(module.granularity, k);
      const out = allocateFit(fit, 'g_idx');
      const at = (part: string): Tensor => out.get(part)!;
      const scales = await halfScales(operands);
      const zeros = offsetZeros(operands, form);
      pack(rt, columnStreams(n, k, bits), codes, at('qweight'), { streamColumns: k, bias });
      const stored = convention === 'v1' ? 2 ** bits - 1 : 0; // minus one
      pack(rt, transposedRowStreams(n, groups, bits), zeros, at('qzeros'), { bias: stored });
      pack(rt, transposed(n, groups, 16), scales, at('scales'));
      out.set('g_idx', groupIndex(operands));
      for (const tensor of [scales, zeros]) tensor.dispose();
      await allPacked(rt);
      return out;
    },

    ...(convention === 'v1' && { memory: { bits: [2, 3, 4, 5, 6, 7, 8], unit: [1, 32], of: columnStreams } }),
  };
}

/** Zero points stored minus one. */
export const gptqLayout = streams('gptq', 'v1');

/** Zero points as they are. */
export const gptqV2Layout = streams('gptq_v2', 'v2');
