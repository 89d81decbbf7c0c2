import type { Setting } from '../config.js';

interface MlpCommon {
  readonly bias: Setting<boolean>;
  readonly activation: { readonly keys: readonly string[]; readonly otherwise: string };
  readonly intermediate: readonly string[];
  /** The size where none of the keys is set: so many times the hidden size. */
  readonly widening?: number;
  /**
   * Key of the share of what `gate` makes, block by block, that is set to 0; where it is absent `otherwise` in the first `blocks` blocks
   * of models of more.
   */
  readonly sparsity?: { readonly list: string; readonly otherwise: number; readonly blocks: number };
  /** Key of a pair of numbers: what multiplies what gate makes, and what multiplies the output. */
  readonly multipliers?: string;
  /** Whether blocks that read another block's keys and values have twice the size. */
  readonly doubledShared?: Setting<boolean>;
  /** Where `enabled`, the size is two thirds of what the keys say, times `times`, rounded up to a multiple (LFM2). */
  readonly adjusted?: {
    readonly enabled: Setting<boolean>;
    readonly times: Setting<number>;
    readonly multiple: Setting<number>;
  };
}

interface MlpNorms {
  readonly norm?: string;
  readonly postNorm?: string;
}

/** y = down(act(gate x) * up x). */
export interface GatedMlpTable extends MlpCommon {
  readonly kind?: 'gated';
  readonly names: MlpNorms & { readonly gate: string; readonly up: string; readonly down: string };
  /** As in FusedMlpTable. */
  readonly clamp?: ClampTable;
}

/** The same with one linear for gate and up: the rows of gate, then those of up. */
export interface FusedMlpTable extends MlpCommon {
  readonly kind: 'fused';
  readonly names: MlpNorms & { readonly gateUp: string; readonly down: string };
  /** GPT-OSS's clamped gate in the place of the activation. */
  readonly clamp?: ClampTable;
}

export interface ClampTable {
  readonly alpha: Setting<number>;
  readonly limit: Setting<number>;
}

/** y = down(act(up x)). */
export interface PlainMlpTable extends MlpCommon {
  readonly kind: 'plain';
  /** `xielu`: the module of that activation's parameters alpha_p, alpha_n, beta and eps. */
  readonly names: MlpNorms & { readonly up: string; readonly down: string; readonly xielu?: string };
}

export type MlpTable = GatedMlpTable | FusedMlpTable | PlainMlpTable;
