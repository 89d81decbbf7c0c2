import { median } from './kernels/time.js';

/** Where the time of a quantization goes, in the order of the work; prepare: what a method decides of the whole model before. */
export const STAGES = [
  'prepare',
  'read',
  'forward',
  'hessian',
  'factor',
  'clip',
  'solve',
  'descend',
  'encode',
  'error',
  'train',
  'write',
  'other',
] as const;
export type StageName = (typeof STAGES)[number];

/** The operations that work for a stage. Those that serve many (cast) are not listed and count as 'other'. */
const OPERATIONS: Readonly<Partial<Record<StageName, string>>> = {
  read: 'upload',
  forward:
    'embedding rmsnorm layernorm add_norm place_columns linear rope attention gated_activation add route_top_k group_by_expert gather_rows scatter_add_rows dequantize short_conv gated_delta selective_scan index_keys selected_attention compress compressed_attention hyper_weights hyper_collapse hyper_expand',
  hessian: 'zero gram_accumulate cross_accumulate cross_drift',
  factor: 'gptq_factor cholesky',
  clip: 'gptq_clip',
  solve: 'gptq_correction gptq_target gptq_solve rtn',
  descend: 'gptq_descend gptq_refit',
  encode: 'gptq_encode gptq_store_scales pack_codes unpack_codes',
  error: 'module_error',
  train:
    'linear_input_gradient linear_weight_gradient rmsnorm_backward layernorm_backward rope_backward attention_backward activation_backward gated_activation_backward short_conv_backward gated_delta_backward selective_scan_backward output_error divergence gemm tune_aim tune_grid tune_scale_gradient tune_gain_gradient tune_refit_grid tune_adam tune_row_dots',
  write: 'download',
};
const STAGE_OF = new Map(
  Object.entries(OPERATIONS).flatMap(([stage, names]) => names.split(' ').map((op) => [op, stage as StageName])),
);

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
    const stage = STAGE_OF.get(op);
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
  const inside = blockSeconds.reduce((a, b) => a + b, 0);
  const typical = median(later);
  const first = (blockSeconds[0] as number) - typical;
  return {
    secondsPerBlock: typical,
    blocks,
    seconds: wall - inside + Math.max(0, first) + typical * blocks,
  };
}
