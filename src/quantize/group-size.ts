import { LpqError } from '../core/error.js';
import { printGranularity } from '../core/granularity.js';
import type { QuantScheme } from './scheme.js';

/** Groups that the kernels of engines read, beside whole rows; the first is the default. */
export const GROUP_SIZES = [128, 64, 32] as const;

/** A linear by the number of its input features. */
export interface Width {
  readonly name: string;
  readonly k: number;
}

/** The largest of GROUP_SIZES that divides the input features of every linear given; undefined where none does. */
export function commonGroupSize(linears: readonly Width[]): number | undefined {
  return GROUP_SIZES.find((size) => linears.every(({ k }) => k % size === 0));
}

/** Whether the groups of a scheme divide K input features. */
export function groupsFit({ granularity }: QuantScheme, k: number): boolean {
  return granularity.kind === 'channel' || k % granularity.size === 0;
}

/**
 * LPQ_GROUP_SIZE about the linears that groups do not divide, of those that have this scheme. `rule`: the recipe's rule that
 * set the size.
 */
export function groupSizeError(
  scheme: QuantScheme,
  refused: readonly [Width, ...Width[]],
  all: readonly Width[],
  rule?: RegExp,
): LpqError {
  const [{ name, k }] = refused;
  const others = refused.length - 1;
  const size = printGranularity(scheme.granularity);
  const fitting = GROUP_SIZES.filter((each) => all.every((linear) => linear.k % each === 0));
  const skip = 'skip these modules with a recipe rule (skip: true).';
  const flag = rule ? `groupSize in the rule ${rule.source}` : '--group-size';
  return new LpqError(
    'LPQ_GROUP_SIZE',
    `groups of ${size} do not divide the ${k} input features of ${name}${others > 0 ? `, nor those of ${others} other module${others > 1 ? 's' : ''} of ${all.length}` : ''}`,
    {
      got: others > 0 ? `${size}; ${kinds(refused)}` : Number(size),
      expected: scheme.twoLevel
        ? `${size}: two-level grids have no other groups`
        : `${fitting.length > 0 ? `${fitting.join(', ')} or ` : ''}channel${all.length > 1 ? '; each divides every module' : ''}`,
      hint: scheme.twoLevel
        ? `Leave --group-scales out, or ${skip}`
        : fitting.length > 0
          ? `Use ${flag} ${fitting[0]}${rule ? '.' : `, or leave it out: the largest of ${GROUP_SIZES.join(', ')} that fits is taken.`}`
          : `Use ${flag} channel, or ${skip}`,
    },
  );
}

/** 'q_proj, k_proj (K = 576): 60 modules; down_proj (K = 1500): 30 modules'. */
function kinds(linears: readonly Width[]): string {
  const byWidth = new Map<number, Width[]>();
  for (const linear of linears) byWidth.set(linear.k, [...(byWidth.get(linear.k) ?? []), linear]);
  return [...byWidth]
    .map(([k, some]) => {
      const names = [...new Set(some.map(({ name }) => name.split('.').at(-1) as string))];
      return `${names.join(', ')} (K = ${k}): ${some.length} module${some.length > 1 ? 's' : ''}`;
    })
    .join('; ');
}
