import type { CanonicalModule } from '../../../formats/canonical/schema.js';
import { fits } from '../layout.js';
import { type Choose, tileTarget } from '../layout-target.js';
import { marlinLayout } from '../layouts/marlin.js';
import { tilusLayout } from '../layouts/tilus.js';
import { turbomindLayout } from '../layouts/turbomind.js';
import { oneLayoutForSiblings } from '../siblings.js';
import type { PackTarget } from '../target.js';

/**
 * Ampere: 4-bit symmetric modules that need no padding go to MARLIN, whose kernel was made for these devices and comes close
 * to the speed of their memory (MARLIN, section 5); other 4-bit ones to TurboMind, which loads scale and zero point as
 * one word; everything else to lpq's own layout, which takes any type.
 */
const ampere: Choose = (name, module, facts) => {
  const marlin = marlinLayout.fit(name, module, facts);
  if (fits(marlin) && module.type.slice(1) === '4' && symmetric(module) && unpadded(module, marlin.padded))
    return {
      layout: marlinLayout,
      fit: marlin,
      why: "marlin, because it is symmetric, has 4 bits and fits MARLIN's tiles without padding, on a device that MARLIN is for.",
    };
  return withoutMarlin(name, module, facts);
};

const withoutMarlin: Choose = (name, module, facts) => {
  const turbo = turbomindLayout.fit(name, module, facts);
  if (fits(turbo) && module.type.slice(1) === '4' && unpadded(module, turbo.padded))
    return {
      layout: turbomindLayout,
      fit: turbo,
      why: 'turbomind, because it has 4 bits and fits its tiles without padding, with scale and zero point in one load.',
    };
  return own(name, module, facts, 'neither marlin nor turbomind takes its type and shape without padding');
};

/** For siblings of which some would get another layout. */
const alike: Choose = (name, module, facts) =>
  own(name, module, facts, 'neither marlin nor turbomind takes all of its siblings without padding');

/** Ada and Hopper: on an H200 MARLIN's kernel reads weights at 0.8 to 2.4 TB/s of the 4.2 that a copy reaches. */
const newer: Choose = (name, module, facts) =>
  own(name, module, facts, 'it takes every type, and MARLIN is for older devices');

function own(name: string, module: CanonicalModule, facts: Parameters<Choose>[2], because: string): ReturnType<Choose> {
  const fit = tilusLayout.fit(name, module, facts);
  return fits(fit) ? { layout: tilusLayout, fit, why: `tilus, because ${because}.` } : fit;
}

function symmetric({ type, zeros }: CanonicalModule): boolean {
  return type.startsWith('i')
    ? zeros.kind === 'none' || (zeros.kind === 'const' && zeros.value === 0)
    : zeros.kind === 'const' && zeros.value === 8;
}

function unpadded({ shape }: CanonicalModule, padded: readonly number[]): boolean {
  return shape[0] === padded[0] && shape[1] === padded[1];
}

/** q, k and v, gate and up get one layout, so that kernels can join them. */
function ampereTarget(name: string, describe: string): PackTarget {
  const target = (choose: Choose) => tileTarget(name, describe, choose);
  const inTurn = [target(ampere), target(withoutMarlin), target(alike)] as const;
  return { ...inTurn[0], resolve: (modules) => ({ target: oneLayoutForSiblings(inTurn, modules) }) };
}

/** One target a generation: the layout of each module is chosen by its type and shape, and the notes say why. */
export const HARDWARE: readonly PackTarget[] = [
  ampereTarget('sm80', 'A100: marlin, turbomind or tilus, to suit each module'),
  ampereTarget('sm86', 'RTX 30, A10: marlin, turbomind or tilus, to suit each module'),
  tileTarget('sm89', 'RTX 40, L40S: tilus for every type', newer),
  tileTarget('sm90', 'H100, H200: tilus for every type', newer),
];
