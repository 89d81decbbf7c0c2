import type { Config } from '../config.js';
import type { LinearPlan, NormMaker, NormPlan } from '../plan.js';
import type { BlockParts } from '../plan-attention.js';
import type { MixerParts } from './plan.js';
import { type ShortConvPlan, shortConvPlan } from './plan-conv.js';
import type { DeltaTable } from './table.js';

/** Where a core finds an input: `width` columns from `first` on of each of `groups` runs of the output of linear `from`. */
export interface Slice {
  readonly from: number;
  readonly groups: number;
  readonly first: number;
  readonly width: number;
}

export interface DeltaCore {
  readonly kind: 'delta';
  readonly heads: number;
  readonly keyHeads: number;
  readonly keyDim: number;
  readonly valueDim: number;
  readonly inputs: Readonly<Record<'q' | 'k' | 'v' | 'gate' | 'beta' | 'decay', Slice>>;
  /** Together the channels of q, k and v. */
  readonly convs: readonly ShortConvPlan[];
  readonly rate: string;
  readonly bias: string;
  /** Numbers of `decay` and of the bias: one a head. */
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
  const into = (name: string, n: number) => linear(prefix + name, n, hidden, false);
  const whole = (from: number, first: number, width: number): Slice => ({ from, groups: 1, first, width });
  const made = ((): { feed: LinearPlan[]; kept: LinearPlan[]; inputs: DeltaCore['inputs'] } => {
    if (names.order === 'parts')
      return {
        feed: [into(names.qkv, 2 * keys + values), into(names.gate, values)],
        kept: [into(names.b, heads), into(names.a, heads)],
        inputs: {
          q: whole(0, 0, keys),
          k: whole(0, keys, keys),
          v: whole(0, 2 * keys, values),
          gate: whole(1, 0, values),
          beta: whole(2, 0, heads),
          decay: whole(3, 0, heads),
        },
      };
    const [each, wide] = [heads / keyHeads, values / keyHeads];
    const grouped = (from: number, first: number, width: number): Slice => ({ from, groups: keyHeads, first, width });
    return {
      feed: [into(names.qkvGate, 2 * keys + 2 * values)],
      kept: [into(names.ba, 2 * heads)],
      inputs: {
        q: grouped(0, 0, keyDim),
        k: grouped(0, keyDim, keyDim),
        v: grouped(0, 2 * keyDim, wide),
        gate: grouped(0, 2 * keyDim + wide, wide),
        beta: grouped(1, 0, each),
        decay: grouped(1, each, each),
      },
    };
  })();
  const channels = chunks(2 * keys + values, names.convs.length);
  return {
    feed: made.feed,
    kept: made.kept,
    core: {
      kind: 'delta',
      ...{ heads, keyHeads, keyDim, valueDim },
      inputs: made.inputs,
      convs: names.convs.map((name, i) =>
        shortConvPlan(config, table.taps, prefix + name, channels[i] as number, false),
      ),
      rate: prefix + names.rate,
      bias: prefix + names.bias,
      gates: heads,
      strength: config.flag(table.doubled ?? false) ? 2 : 1,
      // Its weight is the factor itself, also where other norms of the model add 1 to theirs.
      norm: { ...norm(prefix + names.norm, valueDim), offset: 0 },
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
