import type { Architecture } from './architecture.js';
import { type Config, keyOf, settingNumber } from './config.js';
import type { LinearPlan, NormMaker, NormPlan } from './plan.js';

/** The streams of a model (AltUpTable): linears outside the blocks, one for each stream but the first. */
export interface StreamsPlan {
  readonly inputs: number;
  readonly into: readonly LinearPlan[];
  readonly back: readonly LinearPlan[];
}

/** What a block does with the streams. */
export interface AltUpPlan {
  readonly inputs: number;
  readonly routerNorm: NormPlan;
  readonly router: LinearPlan;
  readonly predict: LinearPlan;
  readonly correct: LinearPlan;
  /** Full name of a tensor [hidden]. */
  readonly outputScale: string | undefined;
  readonly laurel: { readonly left: LinearPlan; readonly right: LinearPlan; readonly norm: NormPlan };
  /** Of the last block, behind which the streams become one. */
  readonly back?: readonly LinearPlan[];
}

const plain = (name: string, n: number, k: number): LinearPlan => ({ name, n, k, bias: false });

/** Undefined where a model has one stream by its class. Throws LPQ_CONFIG. */
export function streamsPlan(config: Config, { names, altUp }: Architecture, hidden: number): StreamsPlan | undefined {
  if (!altUp) return undefined;
  const inputs = whole(config, altUp.inputs, 2);
  const each = (name: string | undefined): LinearPlan[] =>
    Array.from({ length: inputs - 1 }, (_, i) => plain(`${name}`.replace('{stream}', String(i)), hidden, hidden));
  return { inputs, into: each(names.streamIn), back: each(names.streamOut) };
}

/** One block's. Throws LPQ_CONFIG. */
export function altUpPlan(
  config: Config,
  { altUp }: Architecture,
  streams: StreamsPlan | undefined,
  { prefix, hidden, last }: { readonly prefix: string; readonly hidden: number; readonly last: boolean },
  norm: NormMaker,
): AltUpPlan | undefined {
  if (!altUp || !streams) return undefined;
  const { inputs, back } = streams;
  const { laurel } = altUp;
  const rank = whole(config, laurel.rank, 1);
  return {
    inputs,
    routerNorm: norm(prefix + altUp.routerNorm),
    router: plain(prefix + altUp.router, inputs, hidden),
    predict: plain(prefix + altUp.predict, inputs * inputs, inputs),
    correct: plain(prefix + altUp.correct, inputs, inputs),
    outputScale: config.flag(altUp.scaled) ? prefix + altUp.outputScale : undefined,
    laurel: {
      left: plain(prefix + laurel.left, rank, hidden),
      right: plain(prefix + laurel.right, hidden, rank),
      norm: norm(prefix + laurel.norm),
    },
    ...(last && { back }),
  };
}

/** A count of at most 2^16 that config.json may set. */
function whole(config: Config, setting: AltUpSetting, least: number): number {
  const value = settingNumber(config, setting);
  if (Number.isSafeInteger(value) && value >= least && value <= 65_536) return value;
  throw config.error(keyOf(setting), 'is out of range', value, `an integer from ${least} to 65536`);
}

type AltUpSetting = NonNullable<Architecture['altUp']>['inputs'];
