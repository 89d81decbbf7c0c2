import { patternsOf } from '../../src/core/patterns.js';
import { badSetting } from '../foreign/module.js';

export type CompressedFormat =
  | 'pack-quantized'
  | 'int-quantized'
  | 'float-quantized'
  | 'naive-quantized'
  | 'nvfp4-pack-quantized'
  | 'mxfp4-pack-quantized'
  | 'mxfp8-quantized';

const FORMATS: readonly string[] = [
  'pack-quantized',
  'int-quantized',
  'float-quantized',
  'naive-quantized',
  'nvfp4-pack-quantized',
  'mxfp4-pack-quantized',
  'mxfp8-quantized',
] satisfies readonly CompressedFormat[];

/** How the weights of some modules are stored, as a published config says it. */
export interface WeightScheme {
  /** Its key in config_groups, for messages. */
  readonly group: string;
  readonly targets: readonly string[];
  readonly format: CompressedFormat;
  readonly bits: number;
  readonly type: 'int' | 'float';
  readonly symmetric: boolean;
  readonly strategy: 'tensor' | 'channel' | 'group' | 'tensor_group' | 'block';
  readonly groupSize: number | undefined;
  /** [n, k] of strategy block. */
  readonly block: readonly [number, number] | undefined;
  readonly actorder: 'group' | 'weight' | null;
}

export interface WeightSchemes {
  readonly schemes: readonly WeightScheme[];
  readonly ignore: readonly string[];
}

type Json = Readonly<Record<string, unknown>>;

/** Reads a quantization_config of anybody's, every format but the 2:4 ones. Throws LPQ_CONFIG naming the key. */
export function readWeightSchemes(where: string, config: Json): WeightSchemes {
  const groups = config.config_groups;
  if (!isObject(groups)) return badSetting(where, 'config_groups', groups, 'an object');
  const schemes = Object.entries(groups).flatMap(([group, value]) => {
    const scheme = isObject(value) ? value : badSetting(where, `config_groups.${group}`, value, 'an object');
    // A scheme of activations alone has no weights to read.
    return scheme.weights === null || scheme.weights === undefined ? [] : [readScheme(where, group, scheme, config)];
  });
  return { schemes, ignore: strings(where, 'ignore', config.ignore ?? []) };
}

function readScheme(where: string, group: string, scheme: Json, config: Json): WeightScheme {
  const at = `config_groups.${group}`;
  const { weights } = scheme;
  if (!isObject(weights)) return badSetting(where, `${at}.weights`, weights, 'an object');
  const format = scheme.format ?? config.format;
  if (typeof format !== 'string' || !FORMATS.includes(format))
    return badSetting(where, scheme.format === undefined ? 'format' : `${at}.format`, format, FORMATS.join(', '));
  const { num_bits: bits, type = 'int', symmetric = true, actorder = null } = weights;
  const { group_size: size = null, block_structure: block = null } = weights;
  // The schema lets strategy follow from group_size.
  const strategy = weights.strategy ?? (size === null ? 'tensor' : size === -1 ? 'channel' : 'group');
  if (typeof bits !== 'number' || !Number.isInteger(bits) || bits < 1 || bits > 8)
    return badSetting(where, `${at}.weights.num_bits`, bits, '1 to 8');
  if (type !== 'int' && type !== 'float') return badSetting(where, `${at}.weights.type`, type, 'int or float');
  if (typeof symmetric !== 'boolean') return badSetting(where, `${at}.weights.symmetric`, symmetric, 'true or false');
  if (!['tensor', 'channel', 'group', 'tensor_group', 'block'].includes(strategy as string))
    return badSetting(where, `${at}.weights.strategy`, strategy, 'tensor, channel, group, tensor_group or block');
  const grouped = strategy === 'group' || strategy === 'tensor_group';
  if (grouped && (typeof size !== 'number' || !Number.isInteger(size) || size < 1))
    return badSetting(where, `${at}.weights.group_size`, size, 'a positive integer');
  const blocks = strategy === 'block' ? readBlock(where, `${at}.weights.block_structure`, block) : undefined;
  if (actorder !== null && !['group', 'weight', 'static', 'dynamic'].includes(actorder as string))
    return badSetting(where, `${at}.weights.actorder`, actorder, 'null, group, weight or static');
  return {
    group,
    targets: strings(where, `${at}.targets`, scheme.targets),
    format: format as CompressedFormat,
    bits,
    type,
    symmetric,
    strategy: strategy as WeightScheme['strategy'],
    groupSize: grouped ? (size as number) : undefined,
    block: blocks,
    actorder: actorder === 'group' || actorder === 'dynamic' ? 'group' : actorder === null ? null : 'weight',
  };
}

/** [128, 128], or '128x128' as older files write it. */
function readBlock(where: string, key: string, value: unknown): [number, number] {
  const parts = typeof value === 'string' ? value.split('x').map(Number) : value;
  if (Array.isArray(parts) && parts.length === 2 && parts.every((part) => Number.isInteger(part) && part > 0))
    return parts as [number, number];
  return badSetting(where, key, value, '[n, k]');
}

/** The scheme of a module: the group that names it exactly or by expression, else the one for class Linear. */
export function schemeOf(where: string, { schemes, ignore }: WeightSchemes, module: string): WeightScheme | undefined {
  const named = (list: readonly string[], key: string): boolean => {
    const expressions = () => list.filter((item) => item.startsWith('re:')).map((item) => item.slice(3));
    return list.includes(module) || patternsOf(list, `${where}: '${key}'`, expressions).first(module) >= 0;
  };
  if (named(ignore, 'ignore')) return undefined;
  return (
    schemes.find(({ targets, group }) => named(targets, `config_groups.${group}.targets`)) ??
    schemes.find(({ targets }) => targets.includes('Linear'))
  );
}

function strings(where: string, key: string, value: unknown): readonly string[] {
  if (Array.isArray(value) && value.every((item) => typeof item === 'string')) return value;
  return badSetting(where, key, value, 'a list of names');
}

function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
