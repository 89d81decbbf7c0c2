import type { Config } from '../config.js';
import type { NormMaker, NormPlan } from '../plan.js';
import type { BlockParts } from '../plan-attention.js';
import type { MixerParts } from './plan.js';
import { type ShortConvPlan, shortConvPlan } from './plan-conv.js';
import { type DeltaInputs, deltaLinears } from './plan-delta-linears.js';
import type { DeltaTable } from './table.js';

export interface DeltaCore {
  readonly kind: 'delta';
  readonly heads: number;
  readonly keyHeads: number;
  readonly keyDim: number;
  readonly valueDim: number;
  readonly inputs: DeltaInputs['inputs'];
  readonly behind: DeltaInputs['behind'];
  /** Together the channels of q, k and v. */
  readonly convs: readonly ShortConvPlan[];
  readonly rate: string;
  readonly rateShape: readonly number[];
  readonly bias: string;
  /** Numbers of `decay` and of the bias: one a head, or one a channel of its keys. */
  readonly gates: number;
  readonly strength: number;
  readonly norm: NormPlan;
  readonly gateActivation: 'silu' | 'sigmoid';
}

/** Throws LPQ_CONFIG. */
export function deltaPlan(
  config: Config,
  table: DeltaTable,
  hidden: number,
  norm: NormMaker,
  { prefix, linear }: BlockParts,
): MixerParts {
  const { names } = table;
  const [keyHeads, heads] = [config.count(table.keyHeads), config.count(table.heads)];
  const [keyDim, valueDim] = [config.count(table.keyDim), config.count(table.valueDim)];
  if (heads % keyHeads !== 0)
    throw config.error(
      table.heads[0] as string,
      `is no multiple of ${table.keyHeads[0]}`,
      heads,
      `a multiple of ${keyHeads}`,
    );
  const [keys, values] = [keyHeads * keyDim, heads * valueDim];
  const gates = table.byChannel ? heads * keyDim : heads;
  const made = deltaLinears(names, { hidden, keyHeads, heads, keyDim, valueDim, gates }, (name, n, k) =>
    linear(prefix + name, n, k, false),
  );
  const { length: convs } = names.convs;
  const channels = convs === 3 && !table.equalConvs ? [keys, keys, values] : chunks(2 * keys + values, convs);
  return {
    feed: made.feed,
    kept: made.kept,
    core: {
      kind: 'delta',
      ...{ heads, keyHeads, keyDim, valueDim },
      inputs: made.inputs,
      behind: made.behind,
      convs: names.convs.map((name, i) =>
        shortConvPlan(config, table.taps, prefix + name, channels[i] as number, false),
      ),
      rate: prefix + names.rate,
      rateShape: table.rateShape?.map((size) => size ?? heads) ?? [heads],
      bias: prefix + names.bias,
      gates,
      strength: config.flag(table.doubled ?? false) ? 2 : 1,
      // Its weight is the factor itself, also where other norms of the model add 1 to theirs.
      norm: {
        ...norm(prefix + names.norm, valueDim),
        offset: 0,
        ...(table.epsilon !== undefined && { epsilon: table.epsilon }),
      },
      gateActivation: table.gateActivation,
    },
    o: linear(prefix + names.output, hidden, values, false),
  };
}

/** Equal parts of a whole, rounded up but for the last. */
function chunks(whole: number, count: number): number[] {
  const each = Math.ceil(whole / count);
  return Array.from({ length: count }, (_, i) => Math.min(each, whole - i * each));
}
