import { MOST_RESIDUAL } from '../../../formats/kv/scheme.js';
import { INPUT_TYPE_NAMES } from '../../core/input-type.js';
import type { MethodOption } from '../../quantize/option.js';
import { BOS_OPTION } from '../options/parse.js';
import { METHODS } from './methods.js';

/** How a weight is stored; a recipe's rule may set the same fields for the modules it matches. */
export const SCHEME_FIELDS: readonly MethodOption[] = [
  {
    field: 'bits',
    flags: '--bits <n>',
    help: 'an integer type of this many bits',
    takes: { least: 1, most: 8, integer: true },
  },
  {
    field: 'dtype',
    flags: '--dtype <type>',
    help: 'any type: u1-u8, i2-i8, fBeXmY of 3 to 8 bits, int4, w4a16, w8a8, fp8, mxfp4, nvfp4, ...',
    takes: 'text',
    says: 'the name of a type, for example u3 or f6e3m2',
  },
  {
    field: 'groupSize',
    flags: '--group-size <g>',
    help: "how many weights share a scale, or 'channel' (default: the largest of 128, 64, 32 that divides every module; channel for f8e4m3)",
    takes: 'text',
    says: "a positive integer, or 'channel'",
  },
  { field: 'symmetric', flags: '--sym', help: 'symmetric grid (default)', takes: 'switch' },
  {
    field: 'scaleDtype',
    flags: '--scale-dtype <type>',
    help: 'f16, bf16, f32, e8m0 or e4m3 (default: f16)',
    takes: 'text',
    says: 'f16, bf16, f32, e8m0 or e4m3',
  },
  {
    field: 'groupScales',
    flags: '--group-scales <kind>',
    help: 'free, or integer: whole multiples of one scale a row, for products with int8 (default: free)',
    takes: ['free', 'integer'],
  },
  {
    field: 'sparsity',
    flags: '--sparsity <pattern>',
    help: '2:4: set two of every four weights along K to 0 (default: none)',
    takes: ['none', '2:4'],
  },
];

export const METHOD_FIELD: MethodOption = {
  field: 'method',
  flags: '--method <name>',
  help: `${METHODS.map(({ name, summary }) => (summary ? `${name} (${summary})` : name)).join(', ')} (default: ${METHODS[0]?.name})`,
  takes: METHODS.map(({ name }) => name),
  otherwise: METHODS[0]?.name as string,
};

/** What methods declare, each once. */
export const METHODS_FIELDS: readonly MethodOption[] = [...new Set(METHODS.flatMap(({ options }) => options))];

/** Which tokens methods calibrate with. */
export const CALIBRATION_FIELDS: readonly MethodOption[] = [
  {
    field: 'samples',
    flags: '--samples <n>',
    help: 'calibration sequences (default: 128)',
    takes: { least: 1, integer: true },
    otherwise: 128,
  },
  {
    field: 'seqLen',
    flags: '--seq-len <n>',
    help: 'tokens in a sequence (default: 512)',
    takes: { least: 2, integer: true },
    otherwise: 512,
  },
  {
    field: 'seed',
    flags: '--seed <s>',
    help: 'seed of all random choices (default: 0)',
    takes: { least: 0, integer: true },
    otherwise: 0,
  },
];

/** How they are cut out of texts. */
export const TEXT_FIELDS: readonly MethodOption[] = [
  {
    field: 'calibJoin',
    flags: '--calib-join',
    help: 'join the documents of a .jsonl and cut them into windows',
    takes: 'switch',
    otherwise: false,
  },
  {
    field: 'bos',
    flags: '--bos <kind>',
    help: `${BOS_OPTION} (default: auto)`,
    takes: ['auto', 'always', 'never'],
    otherwise: 'auto',
  },
];

/** Scales that calibration finds for engines, which quantize activations and caches while they run. */
export const RANGE_FIELDS: readonly MethodOption[] = [
  {
    field: 'inputScales',
    flags: '--input-scales',
    help: 'calibrate a scale for the input of each linear: static FP8, NVFP4 activations (docs/engines.md)',
    takes: 'switch',
  },
  {
    field: 'kvScales',
    flags: '--kv-scales',
    help: 'calibrate scales of keys and values, for engines that keep them in FP8 (docs/engines.md)',
    takes: 'switch',
  },
];

/** What linears of the quantized model read. */
export const INPUT_FIELD: MethodOption = {
  field: 'inputDtype',
  flags: '--input-dtype <type>',
  help: 'round what each linear reads, while codes are solved and evaluated: mxfp4, mxfp8, or nvfp4 with --input-scales (default: not at all)',
  takes: INPUT_TYPE_NAMES,
};

export const PREDICTION_FIELD: MethodOption = {
  field: 'mtp',
  flags: '--mtp',
  help: 'quantize multi-token prediction layers too',
  takes: 'switch',
};

export const HEAD_FIELD: MethodOption = {
  field: 'lmHead',
  flags: '--lm-head',
  help: 'quantize lm_head too',
  takes: 'switch',
  otherwise: false,
};

/** How the cache of keys and values is packed (docs/kv-cache.md). */
export const KV_FIELDS: readonly MethodOption[] = [
  {
    field: 'kv',
    flags: '--kv <bits>',
    help: 'bits of the KV cache: 2, 4, 8, or k8v4 (default: f16)',
    takes: ['2', '4', '8', 'k8v4'],
  },
  {
    field: 'kvGranularity',
    flags: '--kv-granularity <kind>',
    help: 'scales of keys by channel or by token (default: channel)',
    takes: ['channel', 'token'],
  },
  {
    field: 'kvGroup',
    flags: '--kv-group <g>',
    help: 'how many tokens or dims share a scale: 32, 64 or 128 (default: 128; 32 for 2 bits)',
    takes: { least: 1, integer: true },
    says: '32, 64 or 128',
  },
  {
    field: 'kvResidual',
    flags: '--kv-residual <n>',
    help: 'how many of the newest tokens stay exact, at most; 0: none (default: one block of the layout)',
    takes: { least: 0, most: MOST_RESIDUAL, integer: true },
    says: `0 or a number of tokens, at most ${MOST_RESIDUAL}`,
  },
  {
    field: 'kvLayers',
    flags: '--kv-layers <list>',
    help: 'layers with other bits than --kv, such as 0=8,2-4=k8v4 (default: none)',
    takes: 'text',
    says: 'layers and their bits, such as 0=8,2-4=k8v4',
  },
  {
    field: 'kvFit',
    flags: '--kv-fit',
    help: 'fit the scale and zero of each group to its numbers as they are packed',
    takes: 'switch',
  },
];

/** Everything about a quantization that its bytes depend on, but for the model and the text, in the order of records. */
export const FIELDS: readonly MethodOption[] = [
  ...SCHEME_FIELDS,
  METHOD_FIELD,
  ...METHODS_FIELDS,
  ...CALIBRATION_FIELDS,
  ...TEXT_FIELDS,
  ...RANGE_FIELDS,
  INPUT_FIELD,
  HEAD_FIELD,
  PREDICTION_FIELD,
  ...KV_FIELDS,
];

export function fieldOf(name: string): MethodOption | undefined {
  return FIELDS.find(({ field }) => field === name);
}
