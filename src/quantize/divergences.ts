import type { NativeRuntime } from '../../native/binding.js';
import type { ModelGraph } from '../model/program.js';
import type { WeightSource } from '../model/source.js';
import { influenceOf } from './influence.js';
import type { QuantScheme } from './scheme.js';
import { measureUnits, type Unit } from './sensitivity.js';

/** Units of a model, what to round them to, and text as tokens; `reference`: the scheme that each alone is rounded to. */
export interface DivergenceRequest {
  readonly rts: readonly NativeRuntime[];
  readonly source: WeightSource;
  readonly graph: ModelGraph;
  readonly units: readonly Unit[];
  readonly schemes: readonly QuantScheme[];
  readonly reference: number;
  readonly sequences: readonly Int32Array[];
}

interface DivergenceEvents {
  /** After each linear. */
  readonly onLinear?: (done: number, name: string) => void;
  /** Now and then: throws where the run is to stop. */
  readonly check?: () => void;
}

/**
 * What rounding every unit to each scheme does to the predictions, nats a token, by unit and scheme: the divergence with the reference, for
 * other schemes in proportion to their local errors. Near its minimum the divergence is quadratic in what changes the outputs, so linear in
 * their squared error. For every model and device.
 */
export async function measureDivergences(
  { rts, source, graph, units, schemes, reference, sequences }: DivergenceRequest,
  { onLinear, check }: DivergenceEvents = {},
): Promise<number[][]> {
  const measured = await measureUnits(rts, source, graph, units, schemes, { sequences }, onLinear);
  const [rt, scheme] = [rts[0] as NativeRuntime, schemes[reference] as QuantScheme];
  const influence = await influenceOf(rt, source, graph, units, scheme, sequences, check);
  return measured.map(({ errors }, i) => {
    const factor = (influence[i] as number) / Math.max(errors[reference] as number, Number.MIN_VALUE);
    return errors.map((error) => error * factor);
  });
}
