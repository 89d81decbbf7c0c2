import { awqConfig } from '../../../formats/awq/config.js';
import { awqProblem, awqTensors } from '../../../formats/awq/layout.js';
import { allocate, type Tensor } from '../../../native/binding.js';
import { LpqError } from '../../core/error.js';
import { groupCount, printGranularity } from '../../core/granularity.js';
import { allPacked, pack } from '../../layout/engine.js';
import { halfScalesProblem, hasForm, type IntegerForm, integerForm } from '../integer-form.js';
import { awqWords } from '../layouts/awq.js';
import { transposed } from '../layouts/stream.js';
import { halfScales, offsetZeros } from '../operands.js';
import type { Decision, PackTarget } from '../target.js';

/** AWQ of one group size, `granularity` as printGranularity writes it; undefined: whichever comes. */
function awqTarget(granularity?: string): PackTarget {
  return {
    name: 'awq',
    byName: true,
    describe: 'AWQ (GEMM) tensors for transformers, vLLM and others: 4 bits, symmetric or not, f16 scales',

    plan(name, module, facts): Decision {
      const fallback = (reason: string, remedy: string): Decision => ({
        action: 'fallback',
        form: 'dense',
        reason,
        remedy,
      });
      const form = integerForm(module, facts);
      if (!hasForm(form)) return fallback(form.reason, form.remedy);
      if (form.bits !== 4)
        return fallback(`it has ${form.bits} bits and AWQ has 4`, 'Quantize it with --bits 4, or pack for gptq.');
      if (module.groupIndex)
        return fallback('its groups follow g_idx, which AWQ does not have', 'Pack it for gptq or compressed-tensors.');
      const scales = halfScalesProblem(module, facts, 'AWQ');
      if (scales) return fallback(scales.reason, scales.remedy);
      if (module.transposed)
        return fallback('its class is no Linear, and transformers replaces no other by AWQ', 'Pack it for gptq.');
      const problem = awqProblem(module);
      if (problem) return fallback(problem, 'Pack it for compressed-tensors, which takes any shape.');
      const own = printGranularity(module.granularity);
      if (granularity !== undefined && own !== granularity)
        return fallback(
          `its group size is ${own} and that of the checkpoint ${granularity}, and AWQ has one`,
          'Quantize all modules with the same --group-size.',
        );
      return { action: 'ok', layout: 'awq', padded: module.shape, tensors: awqTensors(name, module), notes: [] };
    },

    resolve(modules) {
      const counts = new Map<string, number>();
      for (const [name, { module, facts }] of modules) {
        if (awqTarget().plan(name, module, facts).action === 'fallback') continue;
        const own = printGranularity(module.granularity);
        counts.set(own, (counts.get(own) ?? 0) + 1);
      }
      const [main, ...others] = [...counts].sort((a, b) => b[1] - a[1]);
      if (!main || others.length === 0) return undefined;
      const left = others.reduce((sum, [, count]) => sum + count, 0);
      return {
        target: awqTarget(main[0]),
        note: `AWQ has one group size: ${left} modules with another than ${main[0]} stay as plain weights.`,
      };
    },

    async pack(job) {
      const { rt, checkpoint, name, module, plan } = job;
      const form = integerForm(module, { zeroRange: [0, 0] }) as IntegerForm;
      const [n, k] = module.shape;
      const groups = groupCount(module.granularity, k);
      const out = new Map<string, Tensor>();
      for (const { name: tensor, dtype, shape } of plan.tensors)
        out.set(tensor, allocate(dtype === 'F16' ? 'f16' : 'i32', shape));
      const at = (part: string): Tensor => out.get(`${name}.${part}`)!;
      const codes = checkpoint.require(name, 'codes');
      const scales = await halfScales(rt, checkpoint.require(name, 'scales'));
      const zeros = offsetZeros(job, form);
      pack(rt, awqWords(n, k), codes, at('qweight'), { streamColumns: k, bias: form.bias });
      pack(rt, awqWords(n, groups), zeros, at('qzeros'));
      pack(rt, transposed(n, groups, 16), scales, at('scales'));
      for (const tensor of [codes, scales, zeros]) tensor.dispose();
      await allPacked(rt);
      return out;
    },

    config({ checkpoint, decisions, plainLinears, roles }) {
      const taken = [...decisions].filter(([, { action }]) => action !== 'fallback').map(([name]) => name);
      const plain = new Set(plainLinears);
      for (const [name, { action }] of decisions) if (action === 'fallback') plain.add(name);
      if (![...decisions.keys()].some(roles.isHead)) plain.add(roles.head);
      for (const name of plain) {
        const inside = taken.find((module) => module.includes(name));
        if (inside !== undefined)
          throw new LpqError('LPQ_PACK', `AWQ cannot leave '${name}' plain: its loaders would leave '${inside}' too`, {
            expected: 'no plain linear whose name is part of that of a quantized one',
            hint: 'Pack for compressed-tensors, which names modules exactly.',
          });
      }
      const { granularity } = checkpoint.module(taken[0] as string);
      const quantization = awqConfig({ granularity, plain: [...plain].sort(), lmHead: taken.some(roles.isHead) });
      return { quantization, files: { 'quantize_config.json': quantization } };
    },
  };
}

export const awq: PackTarget = awqTarget();
