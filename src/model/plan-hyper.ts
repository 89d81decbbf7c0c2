import { type Config, type Setting, settingNumber } from './config.js';

/**
 * Hyper-connections (mHC, arXiv:2512.24880): the residual stream is several, which become one before attention and before the MLP, and
 * take over what those make (native/ops/hyper.h). Names are those of tensors.
 */
export interface HyperTable {
  readonly attention: HyperNames;
  readonly mlp: HyperNames;
  /** Outside the blocks: how the streams become one behind the last. */
  readonly head: HyperNames;
  /** Keys of config.json. */
  readonly streams: readonly string[];
  readonly iterations: readonly string[];
  readonly epsilon: Setting<number>;
  readonly carried: Readonly<Record<string, string>>;
}

export interface HyperNames {
  readonly linear: string;
  readonly base: string;
  readonly scale: string;
}

/** Full names; `rows` of the linear, which reads all streams. */
export interface HyperMix extends HyperNames {
  readonly rows: number;
}

export interface HyperPlan {
  readonly streams: number;
  readonly hidden: number;
  readonly iterations: number;
  readonly epsilon: number;
  /** Of the norm without a weight that the linears read. */
  readonly normEpsilon: number;
  readonly attention: HyperMix;
  readonly mlp: HyperMix;
  /** Of the last block. */
  readonly head?: HyperMix;
}

/** Why they are carried. */
export const CONNECTIONS_STAY = 'a few rows over all streams, which decide how every later block is read';

/** One block's. Throws LPQ_CONFIG. */
export function hyperPlan(
  config: Config,
  table: HyperTable | undefined,
  normEpsilon: number,
  { prefix, hidden, last }: { readonly prefix: string; readonly hidden: number; readonly last: boolean },
): HyperPlan | undefined {
  if (!table) return undefined;
  const streams = config.count(table.streams, undefined, 2, 64);
  const rows = (2 + streams) * streams;
  const mix = ({ linear, base, scale }: HyperNames): HyperMix => ({
    linear: prefix + linear,
    base: prefix + base,
    scale: prefix + scale,
    rows,
  });
  return {
    streams,
    hidden,
    iterations: config.count(table.iterations, undefined, 1, 1000),
    epsilon: settingNumber(config, table.epsilon),
    normEpsilon,
    attention: mix(table.attention),
    mlp: mix(table.mlp),
    ...(last && { head: { ...table.head, rows: streams } }),
  };
}
