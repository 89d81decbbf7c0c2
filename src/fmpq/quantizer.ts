import type { Quantizer } from '../quantize/quantizer.js';
import type { FmpqOptions } from './options.js';
import type { FmpqPlan } from './plan.js';

/**
 * FMPQ's weights: those of another quantizer, which sees the activations that the linears will read. Records what was
 * decided.
 */
export function fmpqQuantizer(base: Quantizer, options: FmpqOptions, plan: FmpqPlan): Quantizer {
  const count = (done: string) => plan.sites.filter((site) => site.done === done).length;
  const kept = plan.sites.filter(({ reason }) => reason !== undefined);
  return {
    ...base,
    method: 'fmpq',
    options: {
      ...base.options,
      fmpq: {
        ...options,
        sha256: plan.sha256,
        share: plan.share,
        scaled: plan.scaled,
        folded: count('folded'),
        gathered: count('gathered'),
        ...(kept.length > 0 && { kept: Object.fromEntries(kept.map(({ site, reason }) => [site, reason])) }),
      },
    },
    feed(rt, statistics, rows) {
      const solver = base.feed(rt, statistics, rows);
      return {
        async solve(name, weight, scheme) {
          const result = await solver.solve(name, weight, scheme);
          return { ...result, quality: { ...result.quality, method: 'fmpq' } };
        },
        dispose: () => solver.dispose(),
      };
    },
  };
}
