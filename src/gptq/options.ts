/** How the columns are walked; all three keep group g = k div size in the stored checkpoint, so no g_idx is needed. */
export type ColumnOrder = 'static' | 'group' | 'none';

/** Settings of the solver. Defaults are what the quality table of bench/results was measured with. */
export interface GptqOptions {
  /** static: by descending diag(H), scales fixed before; group: sorted inside groups, then groups; none: as stored. */
  readonly order: ColumnOrder;
  /** Damping, as a fraction of mean(diag H). */
  readonly damp: number;
  /** GPTAQ's share of the correction for already quantized layers below; 0 turns it off. */
  readonly alpha: number;
  /** Candidates of the clip search, 1 = the full range only. */
  readonly clipSteps: number;
  /** Alternations of scale refit and coordinate descent after the GPTQ pass. */
  readonly rounds: number;
  /** Coordinate-descent sweeps a round. */
  readonly sweeps: number;
  /** Lets symmetric integer grids use negative scales, which puts their extra level on the positive side. */
  readonly bothSigns: boolean;
  /** The least share of the calibration tokens that each expert's statistics are of: those sent to it, and those nearest to being sent. */
  readonly coverage: number;
}

/** GPTAQ's share for 2:4: pruning moves the inputs of later layers further, and more of it is worth making up for. */
export const SPARSE_ALPHA = 0.5;

export const GPTQ_DEFAULTS: GptqOptions = {
  order: 'static',
  damp: 0.01,
  alpha: 0.25,
  clipSteps: 76,
  rounds: 4,
  sweeps: 1,
  bothSigns: true,
  coverage: 0,
};
