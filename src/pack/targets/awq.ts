import { awqConfig } from '../../../formats/awq/config.js';
import { LpqError } from '../../core/error.js';
import { printGranularity } from '../../core/granularity.js';
import { fits } from '../layout.js';
import { layoutTarget } from '../layout-target.js';
import { awqLayout } from '../layouts/awq.js';
import { leftPlain } from '../left-plain.js';
import { HALF_SCALES, NO_EXPERTS } from '../reader-limits.js';
import type { PackTarget } from '../target.js';

/** AWQ of one group size, `granularity` as printGranularity writes it; undefined: whichever comes. */
function awqTarget(granularity?: string): PackTarget {
  return layoutTarget({
    name: 'awq',
    byName: true,
    serve: ['vllm serve DIR', 'transformers serve DIR'],
    describe: 'AWQ (GEMM) tensors for transformers, vLLM and others: 4 bits, symmetric or not, f16 scales',
    limits: [NO_EXPERTS, HALF_SCALES],
    left: 'dense',

    choose(name, module, facts) {
      const fit = awqLayout.fit(name, module, facts);
      const own = printGranularity(module.granularity);
      if (!fits(fit)) return fit;
      if (granularity !== undefined && own !== granularity)
        return {
          reason: `its group size is ${own}, that of the checkpoint is ${granularity}, and AWQ has only one`,
          remedy: 'Quantize all modules with the same --group-size.',
        };
      return { layout: awqLayout, fit };
    },

    resolve(modules) {
      const counts = new Map<string, number>();
      for (const [name, { module, facts }] of modules) {
        if (!fits(awqLayout.fit(name, module, facts))) continue;
        const own = printGranularity(module.granularity);
        counts.set(own, (counts.get(own) ?? 0) + 1);
      }
      const [main, ...others] = [...counts].sort((a, b) => b[1] - a[1]);
      if (!main || others.length === 0) return undefined;
      const left = others.reduce((sum, [, count]) => sum + count, 0);
      return {
        target: awqTarget(main[0]),
        note: `AWQ has one group size: ${left} modules with a group size other than ${main[0]} stay plain weights.`,
      };
    },

    config({ checkpoint, decisions, plainLinears, roles }) {
      const taken = [...decisions].filter(([, { action }]) => action !== 'fallback').map(([name]) => name);
      const unquantized = new Set(plainLinears);
      for (const [name, { action }] of decisions) if (action === 'fallback') unquantized.add(name);
      if (![...decisions.keys()].some(roles.isHead)) unquantized.add(roles.head);
      const { modules, layers } = leftPlain(unquantized, taken, roles);
      const plain = [...modules, ...layers];
      for (const name of plain) {
        const inside = taken.find((module) => module.includes(name));
        if (inside !== undefined)
          throw new LpqError('LPQ_PACK', `AWQ cannot leave '${name}' plain: its loaders would leave '${inside}' too`, {
            expected: "no plain linear whose name is part of a quantized module's name",
            hint: 'Pack for compressed-tensors, which names modules exactly.',
          });
      }
      const { granularity } = checkpoint.module(taken[0] as string);
      const quantization = awqConfig({ granularity, plain: plain.sort(), lmHead: taken.some(roles.isHead) });
      return { quantization, files: { 'quantize_config.json': quantization } };
    },
  });
}

export const awq: PackTarget = awqTarget();
