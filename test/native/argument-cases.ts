import type { DType, OpParams } from '../../native/binding.js';
import { laneProgram } from '../../src/verify/emulate-lanes.js';

export interface Given {
  readonly name: string;
  readonly dtype: DType;
  readonly shape: readonly number[];
}

/** A call that every backend takes, as far as its arguments go. An output named as an input is that tensor. */
interface ArgumentCase {
  readonly op: string;
  readonly inputs: readonly Given[];
  readonly outputs: readonly Given[];
  readonly params: OpParams;
  /** Tensors that set what others must be: a wrong one is told of those, or is taken. */
  readonly measures: readonly string[];
}

/** Tensors are written `name: dtype 2,3; name: dtype 4`. */
function tensors(text: string): Given[] {
  return text
    .split('; ')
    .filter((each) => each !== '')
    .map((each) => {
      const [, name, dtype, sizes] = /^(.+): (\w+) ([\d,]+)$/.exec(each) as unknown as [string, string, DType, string];
      return { name, dtype, shape: sizes.split(',').map(Number) };
    });
}

function row(op: string, inputs: string, outputs: string, params: OpParams = {}, measures = ''): ArgumentCase {
  return { op, inputs: tensors(inputs), outputs: tensors(outputs), params, measures: measures.split(' ') };
}

const type = { kind: 'int', bits: 4, signed: 1, exponent: 0, mantissa: 0, bias: 0, special: 'none' };
const grid = { bits: 4, headDim: 64, kvHeads: 1, keyGroup: 64, valueGroup: 64, pageTokens: 128 };
const latents = { bits: 4, group: 64, latent: 64, rotary: 16, pageTokens: 32 };
const words = { bits: 4, modeDims: [0, 1], modeSizes: [4, 8], modeStrides: [32, 4], modeStream: [0, 0] };
const pages = 'keys: u8 2,4096; keyNumbers: u8 2,512; values: u8 2,4096; valueNumbers: u8 2,512';
const solver = 'T: f32 3,8; the matrix: f32 8,8; scale: f32 3,2; zero: f32 3,2; group: i32 8';

export const argumentCases: readonly ArgumentCase[] = [
  row('cast', 'x: f32 2,3', 'y: f16 2,3', {}, 'x'),
  row('zero', '', 'y: f32 2', {}, 'y'),
  row('add', 'a: f32 6; b: f32 6', 'y: f32 6', {}, 'a'),
  row('activation', 'x: f32 6', 'y: f32 6', { act: 'silu' }, 'x'),
  row('soft_cap', 'x: f32 6', 'y: f32 6', { cap: 2 }, 'x'),
  row('gated_activation', 'gate: f32 6; up: f32 6', 'y: f32 6', { act: 'gelu' }, 'gate'),
  row('clamped_swiglu', 'gate: f32 6; up: f32 6', 'y: f32 6', { alpha: 1, limit: 2 }, 'gate'),
  row('rmsnorm', 'x: f32 4,6; weight: f32 6', 'y: f32 4,6', { eps: 1 }),
  row('scale_rows', 'x: f32 4,6; scales: f32 4', 'y: f32 4,6', {}, 'x'),
  row('xielu', 'x: f32 6; positive: f32 1; negative: f32 1; beta: f32 1; eps: f32 1', 'y: f32 6', {}, 'x'),
  row('layernorm', 'x: f32 4,6; weight: f32 6; bias: f32 6', 'y: f32 4,6', { eps: 1 }),
  row('add_norm', 'h: f32 4,6; y: f32 4,6; weight: f32 6', 'h: f32 4,6; x: f32 4,6', { kind: 'rms', eps: 1 }),
  row('slice_columns', 'x: f32 4,6', 'y: f32 4,2', { first: 1 }, 'x'),
  row('place_columns', 'x: f32 4,2', 'y: f32 4,6', { first: 1 }, 'x'),
  row('transpose', 'x: f32 4,6', 'y: f32 6,4', {}, 'x'),
  row('copy_heads', 'x: f32 4,6', 'y: f32 4,8', { heads: 2, width: 2, fromDim: 3, from: 1, toDim: 4, to: 0 }, 'x'),
  row('head_linear', 'x: f32 4,6; weight: f32 8,5', 'y: f32 4,8', {
    ...{ heads: 2, n: 2, k: 2, first: 1, fromDim: 3, from: 1, toDim: 4, to: 0 },
  }),
  row('route_top_k', 'logits: f32 4,6; bias: f32 6', 'indices: i32 4,2; weights: f32 4,2', { k: 2, normalize: 1 }),
  row('group_by_expert', 'indices: i32 4,2', 'rows: i32 8; offsets: i32 4', { experts: 3 }),
  row(
    'gemm_experts',
    'x: f16 4,128; offsets: i32 3; weights: u8 2,1,1,2048; scales: f16 2,1,1,32; zeros: u8 2,1,1,32; bias: f16 2,32',
    'y: f16 4,32',
    { ...type, groupSize: 128, hasZeros: 1, hasBias: 1 },
    'x offsets y',
  ),
  row('interleave_gates', 'x: u8 2,4,1,2048', 'y: u8 2,4,1,2048', { of: 'words', bits: 4 }),
  row('gather_rows', 'x: f32 4,6; rows: i32 3', 'y: f32 3,6'),
  row(
    'scatter_add_rows',
    'x: f32 8,6; rows: i32 8; weights: f32 8; y: f32 4,6',
    'y: f32 4,6',
    { divide: 2 },
    'weights',
  ),
  row('embedding', 'ids: i32 4; table: f32 9,6', 'y: f32 4,6'),
  row('neg_log_likelihood', 'logits: f32 4,6; targets: i32 4', 'nll: f64 4'),
  row('pack_rows', 'x: f32 4,6', 'y: f16 4,6; scales: f32 4'),
  row('unpack_rows', 'y: f16 4,6; scales: f32 4', 'x: f32 4,6'),
  row('rope', 'x: f32 4,16; cos: f32 9,4; sin: f32 9,4; positions: i32 4', 'x: f32 4,16', {
    heads: 2,
    headDim: 8,
    rotary: 8,
    style: 'half',
  }),
  row('attention', 'q: f32 4,16; k: f32 4,8; v: f32 4,8; starts: i32 3; sinks: f32 2', 'y: f32 4,16', {
    heads: 2,
    kvHeads: 1,
    headDim: 8,
    scale: 1,
  }),
  row(
    'cached_attention',
    'q: f32 4,16; keys: f32 2,9,8; values: f32 2,9,8; starts: i32 3; slots: i32 2; totals: i32 2; sinks: f32 2',
    'y: f32 4,16',
    { heads: 2, kvHeads: 1, headDim: 8, scale: 1, most: 4, longest: 4 },
  ),
  row(
    'cache_append',
    'k: f32 4,8; v: f32 4,8; starts: i32 3; slots: i32 2; totals: i32 2',
    'keys: f16 2,9,8; values: f16 2,9,8',
  ),
  row(
    'rope_append',
    'q: f32 4,16; k: f32 4,8; v: f32 4,8; starts: i32 3; slots: i32 2; totals: i32 2; cos: f32 9,4; sin: f32 9,4; positions: i32 4; the norm of q: f32 8; the norm of k: f32 8',
    'y: f32 4,16; keys: f16 2,9,8; values: f16 2,9,8',
    { heads: 2, kvHeads: 1, headDim: 8, rotary: 8, style: 'half', eps: 1 },
  ),
  row('linear', 'x: f32 4,6; weight: f32 5,6; bias: f32 5', 'y: f32 4,5'),
  row('gram_accumulate', 'x: f32 4,6; the sum: f64 6,6', 'the sum: f64 6,6'),
  row('cross_accumulate', 'a: f32 4,6; b: f32 4,6; the sum: f64 6,6', 'the sum: f64 6,6'),
  row('gram_finish', 'h: f64 6,6', 'h: f64 6,6'),
  row('cross_drift', 'h: f64 6,6; c: f64 6,6', 'c: f64 6,6'),
  row('diagonal', 'h: f64 6,6', 'd: f64 6'),
  row('cholesky', 'a: f64 6,6', 'a: f64 6,6; info: i32 1'),
  row('pack_codes', 'codes: u8 3,8', 'stream: u8 3,4', { bits: 4 }),
  row('unpack_codes', 'stream: u8 3,4', 'codes: u8 3,8', { bits: 4 }),
  row(
    'dequantize',
    'codes: u8 3,8; scales: f16 3,2; zeros: u8 3,2; group: i32 8',
    'w: f32 3,8',
    { ...type, blockN: 1, blockK: 4, hasZeros: 1, hasGroup: 1 },
    'scales',
  ),
  row('rtn', 'w: f32 3,8', 'codes: u8 3,4; scales: f16 3,2; stats: f64 9; zeros: i16 3,2', {
    ...type,
    groupSize: 4,
    symmetric: 0,
  }),
  row('two_level_scales', 'energy: f32 3,2', 'scale: f32 3,2', { scaleDtype: 'f16' }),
  row('group_energy', 'w: f32 3,8; group: i32 8; M: f32 8,8', 'energy: f32 3,2', {}, 'energy'),
  row('prune_magnitude', 'w: f32 3,8', 'pruned: f32 3,8; mask: u8 3,1'),
  row('gptq_factor', 'H: f64 8,8; order: i32 8', 'U: f32 8,8; M: f32 8,8; dead: u8 8; info: f64 3', { damp: 0.01 }),
  row('gptq_correction', 'D: f64 8,8; order: i32 8; U: f32 8,8', 'B: f32 8,8'),
  row('gptq_target', 'W: f32 3,8; order: i32 8; dead: u8 8; D: f64 8,8; U: f32 8,8', 'T: f32 3,8; bad: f64 2', {
    alpha: 0.5,
  }),
  row('gptq_clip', 'T: f32 3,8; the matrix: f32 8,8; group: i32 8', 'scale: f32 3,2; zero: f32 3,2', {
    ...type,
    symmetric: 0,
    steps: 4,
  }),
  row('gptq_solve', solver, 'level: f32 3,8', { ...type }),
  row('gptq_descend', solver, 'level: f32 3,8; changed: f64 1', { ...type, sweeps: 1 }),
  row('gptq_sparse_solve', solver, 'level: f32 3,8; keep: f32 3,8', { ...type }),
  row('gptq_sparse_descend', solver, 'level: f32 3,8; changed: f64 1; keep: f32 3,8', { ...type, sweeps: 1 }),
  row('gptq_prune', 'T: f32 3,8; U: f32 8,8', 'pruned: f32 3,8; keep: f32 3,8'),
  row(
    'gptq_refit',
    'T: f32 3,8; the matrix: f32 8,8; level: f32 3,8; zero: f32 3,2; group: i32 8',
    'scale: f32 3,2; refitted: f64 1',
  ),
  row('gptq_encode', 'level: f32 3,8; order: i32 8', 'codes: u8 3,8', { ...type }),
  row('gptq_store_scales', 'scale: f32 3,2', 'stored: f16 3,2; rounded: f32 3,2; info: f64 2', {}, 'scale'),
  row('module_error', 'weight: f32 3,8; quantized: f32 3,8; H: f64 8,8', 'sums: f64 2'),
  row('layout_pack', 'matrix: u8 4,8; order: i32 8', 'packed: u8 16', { ...words }, 'packed'),
  row('layout_unpack', 'packed: u8 16', 'matrix: u8 4,8', { ...words }, 'packed'),
  row('copy', 'from: u8 16', 'to: u8 16', {}, 'from to'),
  row(
    'kv_decode',
    `q: f16 2,128; ${pages}; table: i32 2,2; lengths: i32 2; tailKeys: f16 2,128,64; tailValues: f16 2,128,64; tails: i32 2; sinks: f32 2`,
    'y: f16 2,128',
    { ...grid, heads: 2, scale: 1 },
  ),
  row('kv_pack', 'k: f16 128,64; v: f16 128,64; table: i32 2', pages, { ...grid }),
  row(
    'kv_append',
    'k: f16 2,64; v: f16 2,64; table: i32 2,2',
    `${pages}; lengths: i32 2; tails: i32 2; tailKeys: f16 2,128,64; tailValues: f16 2,128,64`,
    { ...grid },
  ),
  row('latent_decode', 'q: f16 2,160; pages: u8 2,2176; table: i32 2,2; lengths: i32 2', 'y: f16 2,128', {
    ...latents,
    heads: 2,
    scale: 1,
  }),
  row('latent_pack', 'c: f16 5,64; rope: f16 5,16; table: i32 2', 'pages: u8 2,2176', { ...latents }),
  row('latent_append', 'c: f16 2,64; rope: f16 2,16; table: i32 2,2', 'pages: u8 2,2176; lengths: i32 2', {
    ...latents,
  }),
];

const run = { seed: 1, strips: [0] };
const found = 'registers: i64 5; outputs: f64 7';

/** Operations of the graph that run on the CPU only. */
export const hostCases: readonly ArgumentCase[] = [
  row('band_weight', 'weight: bf16 40,6', 'words: bf16 2,3,64', {}, 'weight'),
  row('linear', 'x: f32 4,6; weight: bf16 2,3,64; bias: f32 40', 'y: f32 4,40', {}, 'y'),
  row('coded_bytes', '', 'bytes: i64 1', { ...type, n: 3, k: 8, group: 0 }),
  row('lay_codes', 'codes: u8 3,8; scales: f32 3,1; zeros: u8 3,1; order: i32 2,8', 'block: u8 9', {
    ...{ ...type, n: 3, k: 8, group: 0, hasZeros: 1, ordered: 1 },
  }),
  row('linear_codes', 'x: f32 4,6; block: u8 9; bias: f32 5', 'y: f32 4,5', {}, 'y'),
  row('match_rms', 'x: f32 4,6; like: f32 4,6', 'y: f32 4,6', { floor: 1 }, 'x'),
  row('scale_columns', 'x: f32 4,6; scales: f32 6', 'y: f32 4,6', {}, 'x'),
  row('gaussian_top_k', 'x: f32 4,6', 'y: f32 4,6', { deviations: 1 }, 'x'),
];

/** The verifier's, which run on the CPU alone. */
export const verifierCases: readonly ArgumentCase[] = [
  row('verify_compare', 'a: u8 2,4; b: u8 2,4', 'info: i64 5', { rows: 2, bits: 8 }, 'a b'),
  row('verify_decode_awq', 'packed: i32 4,2', 'values: u8 16,4; info: i64 5'),
  row('verify_gguf_values', 'blocks: u8 2,18; order: i32 2', 'w: f32 2,32; info: i64 5', { type: 'q4_0' }),
  row(
    'verify_gguf_fields',
    'blocks: u8 2,18; order: i32 2',
    'codes: u8 2,16; scales: f16 2,1; minima: f16 2,1; info: i64 5',
    { type: 'q4_0', bits: 4, k: 32 },
  ),
  row('verify_gguf_nearest', 'blocks: u8 2,18; order: i32 2; w: f32 2,32', 'codes: i64 5; norms: i64 5', {
    type: 'q4_0',
  }),
  row('verify_near_rows', 'a: f32 2,8; w: f32 2,8', 'info: i64 5'),
  row('verify_decode_gptq', 'packed: i32 1,3', 'codes: u8 3,4; info: i64 5', { bits: 4, k: 8 }),
  row('verify_decode_ct', 'packed: i32 3,1', 'codes: u8 3,4; info: i64 5', { bits: 4, k: 8 }),
  row('verify_decode_zeros', 'packed: i32 2,1', 'zeros: u8 8,2; info: i64 5', { bits: 4, down: 0 }),
  row(
    'verify_decode_tiles',
    'packed: u8 512; order: i32 16',
    'codes: u8 64,8; info: i64 5',
    { form: 'marlin', bits: 4, np: 64, kp: 16, k: 16 },
    'packed',
  ),
  row(
    'verify_decode_parameters',
    'packed: f16 64',
    'elements: f16 64,1; info: i64 5',
    { form: 'marlin_scales', bits: 16, np: 64, gp: 1 },
    'packed elements',
  ),
  row('verify_split_pairs', 'pairs: i32 3,2', 'scales: f16 3,2; zeros: i16 3,2; info: i64 5', { bits: 4, constant: 8 }),
  row(
    'verify_decode_sparse',
    'B: i32 128; meta: i16 128',
    'codes: u8 64,16; mask: u8 64,4; padding: i64 5; places: i64 5',
    { bits: 4, np: 64, kp: 32, k: 32, flip: 0, pad: 8 },
    'B meta',
  ),
  row('verify_transpose', 'x: f32 2,3', 'y: f32 3,2', {}, 'x'),
  row('verify_convert_exact', 'x: f32 2,3', 'y: f16 2,3; info: i64 5'),
  row(
    'verify_dequantize',
    'codes: u8 3,4; scales: f16 3,2; mask: u8 3,1',
    'w: f32 3,8',
    { ...type, blockN: 1, blockK: 4, hasMask: 1 },
    'scales',
  ),
  row('verify_fragments', '', 'table: i32 32,8,2', { operand: 'a' }),
  row(
    'verify_kv_decode',
    'pages: u8 1,4096; numbers: u8 1,512; table: i32 1',
    'codes: u8 64,64; scales: f16 1,64; zeros: f16 1,64',
    {
      form: 'bitdecoding',
      outer: 0,
      values: 0,
      channel: 1,
      heads: 1,
      headDim: 64,
      pageTokens: 64,
      bits: 4,
      otherBits: 4,
      group: 64,
      run: 8,
    },
  ),
  row(
    'verify_kv_attention',
    'q: f32 4; keys: f64 3,4; zeros of keys: f64 3,4; values: f64 3,4; zeros of values: f64 3,4',
    'y: f64 4; bound: f64 4',
    { heads: 1, kvHeads: 1, headDim: 4, scale: 1, unit: 1e-7, top: 0 },
  ),
  row(
    'verify_emulate_comet',
    'packed: u8 1,1,1024; packed scales: f32 1,16; bits: u8 1; clip: f32 1; blocks: i32 1; codes: u8 16,64; scales: f32 16,1; permutation: i32 128',
    found,
    run,
  ),
  row(
    'verify_emulate_lanes',
    'scales: f16 64,1; zeros: f16 64,1; codes: u8 64,8; order: i32 16; packed: i32 1,128; packed_scales: f16 1,64',
    found,
    {
      ...type,
      ...run,
      program: laneProgram('marlin_later'),
      tensors: 'packed scales',
      np: 64,
      kp: 16,
      groups: 1,
      group: 16,
      k: 16,
      hasOrder: 1,
    },
    'scales packed packed_scales',
  ),
];

const heads = 'q: f32 4,8; k: f32 4,4; v: f32 4,4';

/** Of training, on the CPU alone. */
export const trainingCases: readonly ArgumentCase[] = [
  row('linear_input_gradient', 'dy: f32 4,5; weight: f32 5,6', 'dx: f32 4,6'),
  row('linear_weight_gradient', 'x: f32 4,6; dy: f32 4,5', 'dw: f32 5,6'),
  row('rmsnorm_backward', 'x: f32 4,6; dy: f32 4,6; weight: f32 6', 'dx: f32 4,6', { eps: 1 }),
  row('layernorm_backward', 'x: f32 4,6; dy: f32 4,6; weight: f32 6', 'dx: f32 4,6', { eps: 1 }),
  row('rope_backward', 'x: f32 4,16; cos: f32 9,4; sin: f32 9,4; positions: i32 4', 'x: f32 4,16', {
    ...{ heads: 2, headDim: 8, rotary: 8, style: 'half' },
  }),
  row(
    'attention_backward',
    `${heads}; starts: i32 2; dy: f32 4,8; sinks: f32 2`,
    'dq: f32 4,8; dk: f32 4,4; dv: f32 4,4',
    { heads: 2, kvHeads: 1, headDim: 4, scale: 1 },
  ),
  row('activation_backward', 'x: f32 6; dy: f32 6', 'dx: f32 6', { act: 'silu' }, 'x'),
  row(
    'gated_activation_backward',
    'gate: f32 6; up: f32 6; dy: f32 6',
    'dgate: f32 6; dup: f32 6',
    { act: 'silu' },
    'gate',
  ),
  row(
    'clamped_swiglu_backward',
    'gate: f32 6; up: f32 6; dy: f32 6',
    'dgate: f32 6; dup: f32 6',
    { alpha: 1, limit: 7 },
    'gate',
  ),
  row('limited_gate_backward', 'gate: f32 6; up: f32 6; dy: f32 6', 'dgate: f32 6; dup: f32 6', { limit: 7 }, 'gate'),
  row(
    'xielu_backward',
    'x: f32 6; positive: f32 1; negative: f32 1; beta: f32 1; eps: f32 1; dy: f32 6',
    'dx: f32 6',
    {},
    'x',
  ),
  row(
    'selective_scan_backward',
    'x: f32 4,6; b: f32 4,5; c: f32 4,5; step: f32 4,2; rate: f32 2; bias: f32 2; skip: f32 2; starts: i32 2; dy: f32 4,6',
    'dx: f32 4,6; db: f32 4,5; dc: f32 4,5; dstep: f32 4,2',
    { heads: 2, headDim: 3, groups: 1, size: 5 },
    'step rate',
  ),
  row('soft_cap_backward', 'y: f32 4,6; dy: f32 4,6', 'dx: f32 4,6', { scale: 1, cap: 2 }),
  row('divergence', 'logits: f32 4,6; target: f32 4,6', 'dlogits: f32 4,6; sums: f64 4', { factor: 1 }),
  row('output_error', 'y: f32 4,6; target: f32 4,6', 'dy: f32 4,6; sums: f64 4'),
  row('tune_aim', 'p: f32 3,8; w: f32 3,8; scale: f32 3,2; t: f32 3,8; most: f32 3', 't: f32 3,8; most: f32 3', {
    ...{ rate: 1, leak: 1 },
  }),
  row('tune_grid', 's: f32 3,2; f: f32 3,2; z: f32 3,2; e: f32 3,2', 'stored: f16 3,2; scale: f32 3,2; zero: f32 3,2', {
    ...type,
  }),
  row('tune_scale_gradient', 'dw: f32 3,8; w: f32 3,8; f: f32 3,2; g: f32 3,2', 'g: f32 3,2', { groupSize: 4 }),
  row(
    'tune_adam',
    'f: f32 3,2; g: f32 3,2; m: f32 3,2; v: f32 3,2',
    'f: f32 3,2; g: f32 3,2; m: f32 3,2; v: f32 3,2',
    {
      ...{ step: 1, rate: 1e-3, beta1: 0.9, beta2: 0.99, eps: 1e-9, least: 0.25, most: 4 },
    },
    'f',
  ),
  row('tune_gain_gradient', 'x: f32 3,8; dy: f32 3,8; gain: f32 8; g: f32 8', 'g: f32 8'),
  row(
    'tune_refit_grid',
    'r: f32 3,8; M: f32 8,8; level: f32 3,8; scale: f32 3,2; zero: f32 3,2',
    'scale: f32 3,2; zero: f32 3,2; moved: f64 1',
    { ...type, groupSize: 4, scaleDtype: 'f16', zeros: 1 },
  ),
  row('tune_row_dots', 'x: f32 3,8; y: f32 3,8', 'dots: f64 3'),
];
