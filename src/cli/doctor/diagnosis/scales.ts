import type { ForeignModule } from '../../../../formats/foreign/module.js';
import { numbersOf } from '../../../../formats/foreign/numbers.js';
import { tell } from '../../../core/activity.js';
import { quantType } from '../../../core/quant-type.js';
import type { Findings } from './finding.js';

/** The largest f16, and the least that is not rounded to 0. */
const F16_MAX = 65504;
const F16_LEAST = 2 ** -25;

interface Counts {
  notFinite: number;
  zero: number;
  negative: number;
  beyond: number;
}

/** Scales that are NaN, infinite, 0 or negative, and those of wider dtypes that kernels cannot hold in fp16. */
export async function diagnoseScales(
  modules: readonly ForeignModule[],
  findings: Findings,
  step: () => Promise<void>,
): Promise<void> {
  let total = 0;
  const negative: string[] = [];
  for (const [i, module] of modules.entries()) {
    tell(`scales of ${module.name}`, i, modules.length);
    const { dtype } = module.declaration.scales;
    const scales = numbersOf(module.decode('scales'), dtype);
    const integer = quantType(module.declaration.type).kind === 'int';
    const counts = countScales(scales, integer && (dtype === 'f32' || dtype === 'bf16'));
    total += scales.length;
    note(module.name, counts, scales.length, findings);
    if (counts.negative > 0) negative.push(`'${module.name}': ${counts.negative} of ${scales.length}`);
    await step();
  }
  findings.looked('scales', `${total} of ${modules.length} modules`);
  // Odd, but the same everywhere: lpq and others give the end of a symmetric grid that has one value more to either sign.
  if (negative.length > 0)
    findings.add('scales', 'warning', `${negative.length} modules have negative scales, the first ${negative[0]}`, {
      remedy: 'Nothing, if the loader multiplies by scales as stored.',
    });
}

function countScales(scales: Float32Array, narrow: boolean): Counts {
  const counts: Counts = { notFinite: 0, zero: 0, negative: 0, beyond: 0 };
  for (const scale of scales) {
    if (!Number.isFinite(scale)) counts.notFinite++;
    else if (scale === 0) counts.zero++;
    else {
      if (scale < 0) counts.negative++;
      const size = Math.abs(scale);
      if (narrow && (size > F16_MAX || size < F16_LEAST)) counts.beyond++;
    }
  }
  return counts;
}

function note(name: string, { notFinite, zero, beyond }: Counts, of: number, findings: Findings): void {
  if (notFinite > 0)
    findings.add('scales', 'problem', `module '${name}': ${notFinite} of ${of} scales are NaN or infinite`, {
      remedy: 'They exceeded the range of fp16 during quantization: quantize this module again.',
    });
  if (beyond > 0)
    findings.add('scales', 'problem', `module '${name}': ${beyond} of ${of} scales are out of fp16's range`, {
      expected: `${F16_LEAST.toExponential(2)} to ${F16_MAX}`,
      remedy: 'Kernels that compute in fp16 turn them into infinity or 0: serve the model in bf16.',
    });
  if (zero > 0)
    findings.add('scales', 'warning', `module '${name}': ${zero} of ${of} scales are 0: all their weights become 0`);
}
