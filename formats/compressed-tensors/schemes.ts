import { LpqError } from '../../src/core/error.js';

/** The storage forms of compressed-tensors that lpq writes. */
export type CompressedFormat =
  | 'pack-quantized'
  | 'int-quantized'
  | 'float-quantized'
  | 'nvfp4-pack-quantized'
  | 'mxfp4-pack-quantized';

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
  /** True: the engine quantizes activations to the same type, one scale a token, as it runs. */
  readonly dynamicActivations?: boolean;
}

/** Modules of one scheme: exact names, re:REGEX, or class names. */
export type TargetedScheme = CompressedScheme & { readonly targets: readonly string[] };

/**
 * quantization_config, whole: its readers forbid unknown keys. Every group names its format, which some readers look for
 * there alone; several at once make `mixed-precision`. `ignore`: Linears that stay as they are. Throws LPQ_PACK for bits that the format lacks.
 */
export function quantizationConfig(options: {
  groups: readonly TargetedScheme[];
  ignore: readonly string[];
}): Record<string, unknown> {
  const formats = [...new Set(options.groups.map(({ format }) => format))];
  const mixed = formats.length > 1;
  return {
    quant_method: 'compressed-tensors',
    format: mixed ? 'mixed-precision' : (formats[0] ?? 'dense'),
    quantization_status: 'compressed',
    global_compression_ratio: null,
    ignore: [...options.ignore],
    kv_cache_scheme: null,
    config_groups: Object.fromEntries(options.groups.map((group, i) => [`group_${i}`, configGroup(group)])),
  };
}

function configGroup(scheme: TargetedScheme): Record<string, unknown> {
  const { targets, format, bits, type, dynamicActivations = false } = scheme;
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
      observer: 'minmax',
      observer_kwargs: {},
    },
    input_activations: dynamicActivations ? tokenActivations(bits, type) : null,
    output_activations: null,
    format,
  };
}

/** Nothing is observed: the scale of a token is made while the model runs. */
function tokenActivations(bits: number, type: 'int' | 'float'): Record<string, unknown> {
  return {
    num_bits: bits,
    type,
    symmetric: true,
    strategy: 'token',
    group_size: null,
    block_structure: null,
    dynamic: true,
    actorder: null,
    observer: null,
    observer_kwargs: {},
  };
}
