/** Where the time of a quantization goes, in the order of the work. */
export const STAGES = [
  'read',
  'forward',
  'hessian',
  'factor',
  'clip',
  'solve',
  'descend',
  'encode',
  'error',
  'write',
  'other',
] as const;
export type StageName = (typeof STAGES)[number];

/** The stage an operation works for. Those that serve many (cast) are not listed and count as 'other'. */
const STAGE_OF: Readonly<Record<string, StageName>> = {
  upload: 'read',
  embedding: 'forward',
  rmsnorm: 'forward',
  add_norm: 'forward',
  place_columns: 'forward',
  linear: 'forward',
  rope: 'forward',
  attention: 'forward',
  gated_activation: 'forward',
  add: 'forward',
  route_top_k: 'forward',
  group_by_expert: 'forward',
  gather_rows: 'forward',
  scatter_add_rows: 'forward',
  dequantize: 'forward',
  zero: 'hessian',
  gram_accumulate: 'hessian',
  cross_accumulate: 'hessian',
  cross_drift: 'hessian',
  gptq_factor: 'factor',
  cholesky: 'factor',
  gptq_clip: 'clip',
  gptq_correction: 'solve',
  gptq_target: 'solve',
  gptq_solve: 'solve',
  rtn: 'solve',
  gptq_descend: 'descend',
  gptq_refit: 'descend',
  gptq_encode: 'encode',
  gptq_store_scales: 'encode',
  pack_codes: 'encode',
  unpack_codes: 'encode',
  module_error: 'error',
  download: 'write',
};

/** Calls and seconds by operation, as NativeRuntime.profile() counts them. */
export type Profile = Readonly<Record<string, { readonly calls: number; readonly seconds: number }>>;

export interface StageReport {
  readonly stages: Readonly<Record<StageName, number>>;
  /** Seconds in which stages ran beside each other, by which their sum exceeds the wall time. */
  readonly overlap: number;
}

/**
 * Seconds by stage. `waited` is what the run waited for reading and writing files; the operations' seconds come from the
 * profile. 'other' is the rest of `wall`: operations of no stage, and JavaScript's own work between them.
 */
export function stageReport(
  profile: Profile,
  waited: { readonly read: number; readonly write: number },
  wall: number,
): StageReport {
  const stages = Object.fromEntries(STAGES.map((name) => [name, 0])) as Record<StageName, number>;
  stages.read = waited.read;
  stages.write = waited.write;
  for (const [op, { seconds }] of Object.entries(profile)) {
    const stage = STAGE_OF[op];
    if (stage !== undefined) stages[stage] += seconds;
  }
  const rest = wall - Object.values(stages).reduce((a, b) => a + b, 0);
  stages.other = Math.max(0, rest);
  return { stages, overlap: Math.max(0, -rest) };
}

export interface BlockEstimate {
  /** Of a typical block: the median of those after the first, which also pays for what is set up once. */
  readonly secondsPerBlock: number;
  readonly blocks: number;
  readonly seconds: number;
}

/** The time of the whole model from a run over its first blocks: what lies outside the blocks, and blocks times the median. */
export function estimateWhole(wall: number, blockSeconds: readonly number[], blocks: number): BlockEstimate | null {
  if (blockSeconds.length === 0) return null;
  const later = blockSeconds.length > 1 ? blockSeconds.slice(1) : blockSeconds;
  const sorted = [...later].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  const median =
    sorted.length % 2 === 1
      ? (sorted[middle] as number)
      : ((sorted[middle - 1] as number) + (sorted[middle] as number)) / 2;
  const inside = blockSeconds.reduce((a, b) => a + b, 0);
  const first = (blockSeconds[0] as number) - median;
  return {
    secondsPerBlock: median,
    blocks,
    seconds: wall - inside + Math.max(0, first) + median * blocks,
  };
}
