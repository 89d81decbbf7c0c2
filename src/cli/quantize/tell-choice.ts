import type { Choice } from '../../quantize/allocate.js';
import type { Unit } from '../../quantize/sensitivity.js';
import type { Run } from '../run.js';
import { bytes, significant } from '../terminal/units.js';
import type { Candidate } from './candidates.js';
import type { SizeTarget } from './target-size.js';
import type { ChooseBy } from './unit-errors.js';

/** The same type everywhere. */
export interface Uniform {
  readonly label: string;
  readonly bits?: number;
  readonly cost: number;
  readonly error: number;
}

/** A choice that was made. */
export interface Told {
  readonly target: SizeTarget;
  readonly by: ChooseBy;
  readonly units: readonly Unit[];
  readonly chosen: readonly Choice<number>[];
  readonly candidates: readonly Candidate[];
  readonly bpw: number;
  readonly size: number;
  readonly error: number;
  readonly uniform: Uniform | undefined;
}

/** Says which type how many units got, and what that is predicted to cost. */
export function tellChoice({ target, by, units, chosen, candidates, bpw, size, error, uniform }: Told, run: Run): void {
  const counts = candidates
    .map(({ label }, i) => [label, chosen.filter(({ value }) => value === i).length] as const)
    .filter(([, count]) => count > 0);
  const of = (i: number) => candidates[(chosen[i] as Choice<number>).value] as Candidate;
  run.report.event(
    'target',
    {
      ...target,
      ...{ chosenBy: by, bitsPerWeight: bpw, output: size, error, uniform: uniform ?? null },
      units: units.map(({ linears }, i) => ({ modules: linears.map(({ name }) => name), ...of(i).settings })),
    },
    `chose ${counts.map(([label, count]) => `${label} for ${count}`).join(', ')} of ${units.length} groups of modules: ${bpw.toFixed(3)} bits per weight, ${bytes(size)}; predicted divergence ${significant(error)} nats per token${uniform ? ` (${significant(uniform.error)} with ${uniform.label} everywhere)` : ''}`,
  );
}

/** '4, 8 bits', or the types as they are. */
export function listed(candidates: readonly Candidate[]): string {
  const widths = candidates.map(({ label }) => /^(\d) bits$/.exec(label)?.[1]);
  const all = widths.every((width) => width !== undefined);
  return all ? `${widths.join(', ')} bits` : candidates.map(({ label }) => label).join(', ');
}
