import { LpqError } from '../../src/core/error.js';

/** The storage forms of compressed-tensors that lpq writes. */
export type CompressedFormat =
  | 'pack-quantized'
  | 'int-quantized'
  | 'float-quantized'
  | 'nvfp4-pack-quantized'
  | 'mxfp4-pack-quantized'
  | 'mxfp8-quantized';

/** How the weights (and activations) of some modules are quantized, in the words of the format's configuration. */
export interface CompressedScheme {
  readonly format: CompressedFormat;
  readonly bits: number;
  readonly type: 'int' | 'float';
  readonly symmetric: boolean;
  /** tensor_group: groups whose scales have a second level, one a tensor. */
  readonly strategy: 'tensor' | 'channel' | 'group' | 'tensor_group' | 'block';
  readonly groupSize: number | null;
  /** [rows, columns] of strategy block. */
  readonly block?: readonly [number, number];
  /** weight: scales belong to static groups in the original order; group: weight_g_idx is stored. */
  readonly actorder?: 'group' | 'weight' | null;
  /** The dtype of scales, if readers distinguish forms by it. */
  readonly scaleDtype?: string;
  /** The form to which the engine rounds activations; absent: they stay in 16 bits. */
  readonly activations?: ActivationScheme;
}

/** How activations are rounded, in the terms of the format's configuration. */
export interface ActivationScheme {
  readonly bits: number;
  readonly type: 'int' | 'float';
  readonly strategy: 'token' | 'tensor' | 'group' | 'tensor_group';
  readonly groupSize?: number;
  /** true: the engine computes scales while the model runs; local: it computes those of groups, and the second level is stored. */
  readonly dynamic: boolean | 'local';
  readonly scaleDtype?: string;
}

/** One scale per token, computed while the model runs. */
export const tokens = (bits: number, type: 'int' | 'float'): ActivationScheme => ({
  ...{ bits, type, strategy: 'token', dynamic: true },
});

/** FP8 with one stored scale, `input_scale`. */
export const STATIC_FP8: ActivationScheme = { bits: 8, type: 'float', strategy: 'tensor', dynamic: false };

/** NVFP4 with a stored second level, `input_global_scale`. */
export const NVFP4_INPUT: ActivationScheme = {
  ...{ bits: 4, type: 'float', strategy: 'tensor_group', groupSize: 16, dynamic: 'local' },
  scaleDtype: 'torch.float8_e4m3fn',
};

/** Modules of one scheme: exact names, re:REGEX, or class names. */
export type TargetedScheme = CompressedScheme & { readonly targets: readonly string[] };

/**
 * quantization_config, whole: its readers forbid unknown keys. Every group names its format, which some readers look for
 * there alone; several at once make `mixed-precision`. `ignore`: unquantized Linears. `kvScales`: the cache has FP8 scales. Throws
 * LPQ_PACK for bits that the format lacks.
 */
export function quantizationConfig(options: {
  groups: readonly TargetedScheme[];
  ignore: readonly string[];
  kvScales?: boolean;
}): Record<string, unknown> {
  const formats = [...new Set(options.groups.map(({ format }) => format))];
  const mixed = formats.length > 1;
  return {
    quant_method: 'compressed-tensors',
    format: mixed ? 'mixed-precision' : (formats[0] ?? 'dense'),
    quantization_status: 'compressed',
    global_compression_ratio: null,
    ignore: [...options.ignore],
    kv_cache_scheme: options.kvScales ? activationArguments(STATIC_FP8) : null,
    config_groups: Object.fromEntries(options.groups.map((group, i) => [`group_${i}`, configGroup(group)])),
  };
}

/** MXFP8: a power of two for every 32 values, computed while the model runs. */
export const MXFP8_INPUT: ActivationScheme = {
  ...{ bits: 8, type: 'float', strategy: 'group', groupSize: 32, dynamic: true, scaleDtype: 'torch.uint8' },
};

function configGroup(scheme: TargetedScheme): Record<string, unknown> {
  const { targets, format, bits, type, activations } = scheme;
  if (!Number.isInteger(bits) || bits < 1 || bits > 8)
    throw new LpqError('LPQ_PACK', `compressed-tensors packs 1 to 8 bits, not ${bits}`);
  return {
    targets: [...targets],
    weights: {
      num_bits: bits,
      type,
      symmetric: scheme.symmetric,
      strategy: scheme.strategy,
      group_size: scheme.groupSize,
      block_structure: scheme.block ? [...scheme.block] : null,
      dynamic: false,
      actorder: scheme.actorder ?? null,
      ...(scheme.scaleDtype !== undefined && { scale_dtype: scheme.scaleDtype }),
      observer: 'minmax',
      observer_kwargs: {},
    },
    input_activations: activations ? activationArguments(activations) : null,
    output_activations: null,
    format,
  };
}

/** Only stored scales have an observer. */
function activationArguments({ bits, type, strategy, groupSize, dynamic, scaleDtype }: ActivationScheme) {
  return {
    num_bits: bits,
    type,
    symmetric: true,
    strategy,
    group_size: groupSize ?? null,
    block_structure: null,
    dynamic,
    actorder: null,
    ...(scaleDtype !== undefined && { scale_dtype: scaleDtype }),
    observer: dynamic === true ? null : 'static_minmax',
    observer_kwargs: {},
  };
}
