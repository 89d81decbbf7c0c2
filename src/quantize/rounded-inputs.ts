import { LpqError } from '../core/error.js';
import { INPUT_TYPES, type InputTypeName } from '../core/input-type.js';
import type { ActivationForm } from '../model/source.js';
import type { ModulePlan } from './plan.js';

/**
 * What the planned linears read instead of their inputs, by name; `most`: the largest magnitude of each input over the calibration text.
 * Throws LPQ_GROUP_SIZE for a linear whose inputs the type's blocks do not divide.
 */
export function roundedInputs(
  plan: ModulePlan,
  type: InputTypeName,
  most: ReadonlyMap<string, number> = new Map(),
): Map<string, ActivationForm> {
  const { block } = INPUT_TYPES[type];
  return new Map(
    [...plan].map(([name, { linear }]) => {
      if (linear.k % block !== 0)
        throw new LpqError('LPQ_GROUP_SIZE', `the inputs of ${name} have no whole blocks of ${type}`, {
          got: `${linear.k} input features`,
          expected: `a multiple of ${block}`,
          hint: 'Skip such modules with a recipe rule (skip: true), or leave --input-dtype out.',
        });
      const largest = most.get(name);
      return [name, { rounded: { type, ...(largest !== undefined && { most: largest }) } }];
    }),
  );
}
