import { gptqTarget } from '../gptq-target.js';
import { hasForm, integerForm } from '../integer-form.js';
import { gptqLayout } from '../layouts/gptq.js';
import { GPTQ_WIDTHS, HALF_SCALES, NO_EXPERTS, SYMMETRIC_GPTQ } from '../reader-limits.js';
import type { PackTarget, Redirect } from '../target.js';
import { gptqV2 } from './gptq_v2.js';

/** GPTQ as everybody reads it (v1: zero points stored minus one). Asymmetric checkpoints are redirected to v2. */
export const gptq: PackTarget = {
  ...gptqTarget(gptqLayout, 'v1', 'GPTQ tensors for transformers, vLLM and others: 2, 3, 4 or 8 bits, f16 scales', [
    SYMMETRIC_GPTQ,
    GPTQ_WIDTHS,
    NO_EXPERTS,
    HALF_SCALES,
  ]),

  /** v1 cannot say a zero point of 0, and one checkpoint has one convention. */
  resolve(modules): Redirect | undefined {
    for (const [name, { module, facts }] of modules) {
      const form = integerForm(module, facts);
      if (gptq.plan(name, module, facts).action === 'fallback' || !hasForm(form) || form.symmetric) continue;
      return {
        target: gptqV2,
        note: `Written as gptq_v2: '${name}' is asymmetric, and the gptq convention (zero - 1) cannot store a zero point of 0.`,
      };
    }
    return undefined;
  },
};
