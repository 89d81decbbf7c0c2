import type { Architecture } from './architecture.js';
import { type Config, keyOf, settingNumber } from './config.js';
import type { LinearPlan, NormMaker, NormPlan } from './plan.js';
import type { Activation } from './plan-mlp.js';

/** Per-layer embeddings of a model (PerLayerTable): what is outside the blocks. */
export interface PerLayerPlan {
  /** Full name of the table [vocab, layers * size]. */
  readonly weight: string;
  readonly vocab: number;
  readonly size: number;
  readonly layers: number;
  readonly linear: LinearPlan;
  /** Of every run of `size`. */
  readonly norm: NormPlan;
}

/** How a block ends, by the vector that a token has for it. */
export interface PerLayerEnd {
  /** Its first number among those of all blocks. */
  readonly first: number;
  readonly size: number;
  readonly gate: LinearPlan;
  readonly back: LinearPlan;
  readonly postNorm: NormPlan;
  readonly activation: Activation;
}

/** Undefined where the config asks for none. Throws LPQ_CONFIG. */
export function perLayerPlan(
  config: Config,
  { names, perLayer }: Architecture,
  layers: number,
  hidden: number,
  norm: NormMaker,
): PerLayerPlan | undefined {
  if (!perLayer || names.perLayer === undefined) return undefined;
  const count = (setting: typeof perLayer.size, least: number): number => {
    const value = settingNumber(config, setting);
    if (Number.isSafeInteger(value) && value >= least) return value;
    throw config.error(keyOf(setting), 'is out of range', value, `an integer of at least ${least}`);
  };
  const size = count(perLayer.size, 0);
  if (size === 0) return undefined;
  return {
    weight: `${names.perLayer}.weight`,
    vocab: count(perLayer.vocab, 1),
    size,
    layers,
    linear: { name: `${names.perLayerLinear}`, n: layers * size, k: hidden, bias: false },
    norm: norm(`${names.perLayerNorm}`, size),
  };
}

/** The end of one block. */
export function perLayerEnd(
  { perLayer }: Architecture,
  plan: PerLayerPlan | undefined,
  { prefix, index, hidden }: { readonly prefix: string; readonly index: number; readonly hidden: number },
  norm: NormMaker,
  activation: Activation,
): PerLayerEnd | undefined {
  if (!plan || !perLayer) return undefined;
  const { size } = plan;
  return {
    first: index * size,
    size,
    gate: { name: prefix + perLayer.gate, n: size, k: hidden, bias: false },
    back: { name: prefix + perLayer.back, n: hidden, k: size, bias: false },
    postNorm: norm(prefix + perLayer.postNorm),
    activation,
  };
}
