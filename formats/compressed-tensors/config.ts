import { LpqError } from '../../src/core/error.js';
import type { Granularity } from '../../src/core/granularity.js';
import { quantizationConfig, type TargetedScheme } from './schemes.js';

/** One group of modules with the same scheme. */
export interface SchemeGroup {
  /** Exact names, re:REGEX, or class names; ['Linear'] for all. */
  readonly targets: readonly string[];
  readonly bits: number;
  readonly symmetric: boolean;
  readonly granularity: Granularity;
  /** weight: scales belong to static groups in the original order; group: weight_g_idx is stored. */
  readonly actorder?: 'group' | 'weight' | null;
}

/**
 * quantization_config of a pack-quantized checkpoint. Its readers forbid unknown keys, so this is the whole object.
 * `ignore`: Linears that stay as they are. Throws LPQ_PACK for bits that the format lacks.
 */
export function compressedTensorsConfig(options: {
  groups: readonly SchemeGroup[];
  ignore: readonly string[];
}): Record<string, unknown> {
  const groups = options.groups.map(
    ({ targets, bits, symmetric, granularity, actorder = null }): TargetedScheme => ({
      targets,
      format: 'pack-quantized',
      bits,
      type: 'int',
      symmetric,
      strategy: granularity.kind,
      groupSize: granularity.kind === 'group' ? granularity.size : null,
      actorder,
    }),
  );
  return quantizationConfig({ groups, ignore: options.ignore });
}

/** A scheme that a published pack-quantized config names. */
export interface ReadScheme {
  readonly targets: readonly string[];
  readonly bits: number;
  readonly symmetric: boolean;
  readonly granularity: Granularity;
  readonly actorder: 'group' | 'weight' | null;
}

/** Reads a quantization_config of anybody's. Throws LPQ_CONFIG naming the key. */
export function readCompressedTensorsConfig(
  where: string,
  config: Readonly<Record<string, unknown>>,
): { schemes: readonly ReadScheme[]; ignore: readonly string[] } {
  const bad = (key: string, got: unknown, expected: string): never => {
    throw new LpqError('LPQ_CONFIG', `${where}: ${key} of the compressed-tensors configuration cannot be used`, {
      got: JSON.stringify(got) ?? 'nothing',
      expected,
    });
  };
  const strings = (key: string, value: unknown): readonly string[] =>
    Array.isArray(value) && value.every((item) => typeof item === 'string')
      ? value
      : bad(key, value, 'a list of names');
  if (config.format !== 'pack-quantized') bad('format', config.format, 'pack-quantized');
  const groups = config.config_groups;
  if (typeof groups !== 'object' || groups === null) return bad('config_groups', groups, 'an object');
  const schemes = Object.entries(groups as Record<string, Record<string, unknown> | null>).map(
    ([key, group]): ReadScheme => {
      const at = `config_groups.${key}`;
      const weights = group?.weights as Record<string, unknown> | null | undefined;
      if (!weights) return bad(`${at}.weights`, weights, 'an object');
      const { num_bits: bits, type = 'int', symmetric = true, strategy, group_size: size, actorder = null } = weights;
      if (typeof bits !== 'number' || !Number.isInteger(bits) || bits < 1 || bits > 8)
        return bad(`${at}.weights.num_bits`, bits, '1 to 8');
      if (type !== 'int') bad(`${at}.weights.type`, type, 'int');
      if (typeof symmetric !== 'boolean') return bad(`${at}.weights.symmetric`, symmetric, 'true or false');
      if (strategy !== 'group' && strategy !== 'channel') bad(`${at}.weights.strategy`, strategy, 'group or channel');
      if (strategy === 'group' && (typeof size !== 'number' || !Number.isInteger(size) || size < 1))
        bad(`${at}.weights.group_size`, size, 'a positive integer');
      if (actorder !== null && actorder !== 'group' && actorder !== 'weight' && actorder !== 'static')
        return bad(`${at}.weights.actorder`, actorder, 'null, group, weight or static');
      const granularity: Granularity =
        strategy === 'group' ? { kind: 'group', size: size as number } : { kind: 'channel' };
      const targets = strings(`${at}.targets`, group?.targets);
      return { targets, bits, symmetric, granularity, actorder: actorder === 'static' ? 'weight' : actorder };
    },
  );
  return { schemes, ignore: strings('ignore', config.ignore ?? []) };
}
