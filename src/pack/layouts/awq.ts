import { awqProblem, awqTensors } from '../../../formats/awq/layout.js';
import type { Tensor } from '../../../native/binding.js';
import { groupCount } from '../../core/granularity.js';
import { allPacked, pack } from '../../layout/engine.js';
import { type MemoryLayout, memoryLayout } from '../../layout/memory.js';
import { halfScalesProblem, hasForm, type IntegerForm, integerForm, type NoForm, noForm } from '../integer-form.js';
import { allocateFit, exactFit, type Fit, type PackLayout } from '../layout.js';
import { halfScales, offsetZeros } from '../operands.js';
import { transposed } from './stream.js';

/** AWQ (GEMM): 4 bits, symmetric or not, f16 scales. */
export const awqLayout: PackLayout = {
  name: 'awq',

  fit(name, module, facts): Fit | NoForm {
    const form = integerForm(module, facts);
    if (!hasForm(form)) return form;
    if (form.bits !== 4)
      return noForm(`it has ${form.bits} bits, and AWQ has 4`, 'Quantize it with --bits 4, or pack for gptq.');
    if (module.groupIndex)
      return noForm('its groups follow g_idx, which AWQ does not have', 'Pack it for gptq or compressed-tensors.');
    const scales = halfScalesProblem(module, facts, 'AWQ');
    if (scales) return scales;
    if (module.transposed)
      return noForm('its class is not Linear, and transformers replaces only Linear by AWQ', 'Pack it for gptq.');
    const problem = awqProblem(module);
    if (problem) return noForm(problem, 'Pack it for compressed-tensors, which takes any shape.');
    return exactFit(name, module, awqTensors(name, module));
  },

  async pack(operands, fit) {
    const { rt, module, codes } = operands;
    const form = integerForm(module, { zeroRange: [0, 0] }) as IntegerForm;
    const [n, k] = module.shape;
    const groups = groupCount(module.granularity, k);
    const out = allocateFit(fit);
    const at = (part: string): Tensor => out.get(part)!;
    const scales = await halfScales(operands);
    const zeros = offsetZeros(operands, form);
    pack(rt, awqWords(n, k), codes, at('qweight'), { streamColumns: k, bias: form.bias });
    pack(rt, awqWords(n, groups), zeros, at('qzeros'));
    pack(rt, transposed(n, groups, 16), scales, at('scales'));
    for (const tensor of [scales, zeros]) tensor.dispose();
    await allPacked(rt);
    return out;
  },
};

/**
 * I32 [columns, rows/8] of a matrix [rows, columns] of nibbles: word (column, c) holds rows 8c to 8c + 7, the even ones in
 * its low half and the odd ones in its high half (AWQ qweight of codes [N, K], qzeros of zeros [N, G]). Row 8c + j sits
 * in nibble 4 (j mod 2) + j div 2.
 */
export function awqWords(rows: number, columns: number): MemoryLayout {
  return memoryLayout({
    bits: 4,
    rows: [
      { size: rows / 8, stride: 32 },
      { size: 4, stride: 4 },
      { size: 2, stride: 16 },
    ],
    columns: [{ size: columns, stride: rows * 4 }],
    bytes: (rows * columns) / 2,
  });
}
