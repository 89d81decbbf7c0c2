import type { LinearPlan } from '../plan.js';
import type { DeltaLinears } from './table.js';

/** Where a core finds an input: `width` columns from `first` on of each of `groups` runs of the output of linear `from`. */
export interface Slice {
  readonly from: number;
  readonly groups: number;
  readonly first: number;
  readonly width: number;
}

/** A linear that reads what linear `from` made, and stays in 16 bits. */
export interface Behind {
  readonly from: number;
  readonly linear: LinearPlan;
}

/** The linears before a gated delta rule; inputs count those of feed, kept and behind, in this order. */
export interface DeltaInputs {
  readonly feed: readonly LinearPlan[];
  readonly kept: readonly LinearPlan[];
  readonly behind: readonly Behind[];
  readonly inputs: Readonly<Record<'q' | 'k' | 'v' | 'gate' | 'beta' | 'decay', Slice>>;
}

export interface DeltaSizes {
  readonly hidden: number;
  readonly keyHeads: number;
  readonly heads: number;
  readonly keyDim: number;
  readonly valueDim: number;
  /** Columns of the decay. */
  readonly gates: number;
}

type Maker = (name: string, n: number, k: number) => LinearPlan;

export function deltaLinears(names: DeltaLinears, sizes: DeltaSizes, linear: Maker): DeltaInputs {
  const { hidden, keyHeads, heads, keyDim, valueDim } = sizes;
  const [keys, values] = [keyHeads * keyDim, heads * valueDim];
  const into = (name: string, n: number) => linear(name, n, hidden);
  if (names.order === 'separate') return separate(names, sizes, linear);
  if (names.order === 'parts')
    return {
      feed: [into(names.qkv, 2 * keys + values), into(names.gate, values)],
      kept: [into(names.b, heads), into(names.a, heads)],
      behind: [],
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
    behind: [],
    inputs: {
      q: grouped(0, 0, keyDim),
      k: grouped(0, keyDim, keyDim),
      v: grouped(0, 2 * keyDim, wide),
      gate: grouped(0, 2 * keyDim + wide, wide),
      beta: grouped(1, 0, each),
      decay: grouped(1, each, each),
    },
  };
}

const whole = (from: number, first: number, width: number): Slice => ({ from, groups: 1, first, width });

/** A linear each; a pair of names is one behind another, `keyDim` wide between them. */
function separate(
  names: Extract<DeltaLinears, { order: 'separate' }>,
  { hidden, keyHeads, heads, keyDim, valueDim, gates }: DeltaSizes,
  linear: Maker,
): DeltaInputs {
  const [keys, values] = [keyHeads * keyDim, heads * valueDim];
  const widths = { q: keys, k: keys, v: values, gate: values, beta: heads, decay: gates };
  const feed = (['q', 'k', 'v'] as const).map((name) => linear(names[name], widths[name], hidden));
  const kept = [linear(names.b, heads, hidden)];
  const pairs: { of: 'decay' | 'gate'; first: LinearPlan; last: LinearPlan }[] = [];
  const place = { q: 0, k: 1, v: 2, beta: -1, decay: -1, gate: -1 };
  for (const of of ['decay', 'gate'] as const) {
    const name = of === 'decay' ? names.a : names.gate;
    if (typeof name !== 'string') {
      const [first, last] = [linear(name[0], keyDim, hidden), linear(name[1], widths[of], keyDim)];
      pairs.push({ of, first, last });
    } else if (of === 'gate') place.gate = feed.push(linear(name, values, hidden)) - 1;
    else kept.push(linear(name, gates, hidden));
  }
  place.beta = feed.length;
  if (typeof names.a === 'string') place.decay = feed.length + 1;
  const behind = pairs.map(({ first, last }): Behind => ({ from: feed.length + kept.push(first) - 1, linear: last }));
  for (const [i, { of }] of pairs.entries()) place[of] = feed.length + kept.length + i;
  const inputs = Object.fromEntries(
    Object.entries(place).map(([name, from]) => [name, whole(from, 0, widths[name as keyof typeof widths])]),
  ) as DeltaInputs['inputs'];
  return { feed, kept, behind, inputs };
}
