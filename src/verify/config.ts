import type { ArtifactManifest, PackedModule } from '../../formats/artifact/schema.js';
import { LpqError } from '../core/error.js';
import { patternsOf } from '../core/patterns.js';
import { quantType } from '../core/quant-type.js';
import { expectation, isSymmetric, PACKED_LAYOUTS } from './layouts.js';
import type { Recorder } from './report.js';

type Json = Readonly<Record<string, unknown>>;

/** What a loader would believe of a module; undefined: it would take it for an unquantized one. */
interface Scheme {
  readonly bits: unknown;
  /** Features a group, -1 for whole channels. */
  readonly group: unknown;
  readonly sym: unknown;
  /** Whether groups are named by g_idx. */
  readonly order?: unknown;
  /** int or float; the storage form; what is said of activations. compressed-tensors only. */
  readonly type?: unknown;
  readonly format?: unknown;
  readonly activations?: unknown;
}

/** What of a module's form the artifact for each public consumer may hold. */
const LAYOUTS_OF: Readonly<Record<string, readonly string[]>> = {
  gptq: ['gptq'],
  gptq_v2: ['gptq_v2'],
  awq: ['awq'],
  'compressed-tensors': ['compressed-tensors', 'float-quantized', 'nvfp4-pack-quantized', 'mxfp4-pack-quantized'],
  'compressed-tensors-w8a8': ['int-quantized', 'float-quantized'],
};

/** quantization_config (and quantize_config.json, `mirror`) against the manifest, module by module. */
export function checkConfig(
  recorder: Recorder,
  manifest: ArtifactManifest,
  config: Json,
  mirror: unknown | undefined,
): void {
  const quantization = asObject(config.quantization_config);
  const { target } = manifest;
  const fail = (message: string, got?: unknown, expected?: unknown, module?: string): void => {
    recorder.check(false, {
      check: 'config',
      ...(module !== undefined && { module }),
      ...(got !== undefined && { got: show(got) }),
      ...(expected !== undefined && { expected: show(expected) }),
      message,
    });
  };
  const consumer = Object.hasOwn(LAYOUTS_OF, target);
  if (!quantization) {
    if (consumer) fail(`config.json has no quantization_config, which a loader of ${target} needs`);
    else recorder.detail('config', 'config.json states no quantization_config');
    return;
  }
  const gptq = target === 'gptq' || target === 'gptq_v2';
  const compressed = target.startsWith('compressed-tensors');
  const method = gptq ? 'gptq' : compressed ? 'compressed-tensors' : target === 'awq' ? 'awq' : undefined;
  recorder.count('config');
  if (method && quantization.quant_method !== method)
    fail('quantization_config.quant_method is wrong', quantization.quant_method, method);
  if (target === 'awq')
    for (const [key, expected] of [
      ['version', 'gemm'],
      ['zero_point', true],
    ] as const)
      if (quantization[key] !== expected) fail(`quantization_config.${key} is wrong`, quantization[key], expected);
  if (gptq && (quantization.checkpoint_format ?? 'gptq') !== target)
    fail('quantization_config.checkpoint_format is wrong', quantization.checkpoint_format, target);
  if (mirror !== undefined && JSON.stringify(mirror) !== JSON.stringify(config.quantization_config))
    fail('quantize_config.json is not the quantization_config of config.json');
  for (const [name, module] of Object.entries(manifest.modules)) {
    if (expectation(name, module).problems.length > 0) continue; // told with the tensors
    const packed = PACKED_LAYOUTS.includes(module.layout);
    if (packed && !(LAYOUTS_OF[target] ?? [target]).includes(module.layout) && !/^sm\d+$/.test(target))
      fail(`module '${name}' is in layout ${module.layout}, in an artifact for ${target}`, undefined, undefined, name);
    const schemeFor = compressed ? compressedScheme : target === 'awq' ? awqScheme : gptqScheme;
    let stated: Scheme | undefined;
    try {
      stated = schemeFor(quantization, name);
    } catch (error) {
      if (!(error instanceof LpqError)) throw error;
      // A rule that cannot be followed says nothing about any module.
      fail(error.message, error.got);
      return;
    }
    if (!packed) {
      if (consumer && stated && module.layout === 'dense')
        fail(`quantization_config claims that the dense module '${name}' is quantized`, undefined, undefined, name);
      continue;
    }
    recorder.count('config');
    if (!stated) {
      fail(`quantization_config leaves out module '${name}', which is packed`, undefined, undefined, name);
      continue;
    }
    const actual = schemeOf(module, target);
    // A config of no public consumer (marlin, tilus, ...) need not state everything; what it states must be true.
    for (const key of Object.keys(actual) as (keyof Scheme)[])
      if ((consumer || stated[key] !== undefined) && stated[key] !== actual[key])
        fail(`quantization_config states another ${WORD[key]} for module '${name}'`, stated[key], actual[key], name);
  }
}

const WORD: Readonly<Record<keyof Scheme, string>> = {
  bits: 'number of bits',
  group: 'group size',
  sym: 'symmetry',
  order: 'activation order',
  type: 'kind of number',
  format: 'storage form',
  activations: 'treatment of activations',
};

function schemeOf(module: PackedModule, target: string): Scheme {
  const { bits, kind } = quantType(module.type);
  const [rows] = module.scales.block;
  const size = module.granularity.kind === 'channel' ? -1 : module.granularity.size;
  const shared = /^(int|float)-quantized$/.test(module.layout) ? module.scales.stored : undefined;
  const group = shared === 'tensor' ? shared : shared ? shared.join(' x ') : rows > 1 ? `${rows} x ${size}` : size;
  const own = { bits, group };
  if (target === 'awq') return { ...own, sym: true };
  const scheme = { ...own, sym: kind === 'float' || isSymmetric(module), order: module.canonical.g_idx !== undefined };
  if (!target.startsWith('compressed-tensors')) return scheme;
  return {
    ...scheme,
    type: kind,
    format: module.layout === 'compressed-tensors' ? 'pack-quantized' : module.layout,
    activations: target === 'compressed-tensors-w8a8' ? `${bits}-bit ${kind}, dynamic, token` : 'none',
  };
}

/** AWQ's one scheme; a module is left out when an entry of the list is part of its name. qzeros are always read. */
function awqScheme(config: Json, name: string): Scheme | undefined {
  const left = config.modules_to_not_convert;
  if (Array.isArray(left) && left.some((part) => typeof part === 'string' && name.includes(part))) return undefined;
  return { bits: config.bits, group: config.group_size, sym: true };
}

/** GPTQ's one scheme with GPTQModel's `dynamic` rules: '+:REGEX' or 'REGEX' overrides, '-:REGEX' leaves out. */
function gptqScheme(config: Json, name: string): Scheme | undefined {
  let own: Json = config;
  const dynamic = asObject(config.dynamic) ?? {};
  const rules = Object.keys(dynamic);
  const expressions = () => rules.map((rule) => rule.replace(/^[+-]:/, ''));
  const rule = rules[patternsOf(dynamic, "quantization_config: 'dynamic'", expressions).first(name)];
  if (rule?.startsWith('-:')) return undefined;
  if (rule !== undefined) own = { ...config, ...asObject(dynamic[rule]) };
  return { bits: own.bits, group: own.group_size, sym: own.sym, order: own.desc_act };
}

/** The scheme of the config group that names the module: exactly, by re:REGEX, or as class Linear. */
function compressedScheme(config: Json, name: string): Scheme | undefined {
  const names = (list: unknown): boolean => {
    if (!Array.isArray(list)) return false;
    const expressions = () =>
      list.filter((item) => typeof item === 'string' && item.startsWith('re:')).map((item: string) => item.slice(3));
    return list.includes(name) || patternsOf(list, 'quantization_config', expressions).first(name) >= 0;
  };
  if (names(config.ignore)) return undefined;
  const groups = Object.values(asObject(config.config_groups) ?? {}).map((group) => asObject(group) ?? {});
  const linear = (list: unknown): boolean => Array.isArray(list) && list.includes('Linear');
  const chosen = groups.find(({ targets }) => names(targets)) ?? groups.find(({ targets }) => linear(targets));
  const weights = asObject(chosen?.weights);
  if (!chosen || !weights || (weights.type !== 'int' && weights.type !== 'float')) return undefined;
  const input = asObject(chosen.input_activations);
  const block = Array.isArray(weights.block_structure) ? weights.block_structure.join(' x ') : undefined;
  return {
    bits: weights.num_bits,
    group: { channel: -1, block, tensor: 'tensor' }[String(weights.strategy)] ?? weights.group_size,
    sym: weights.symmetric,
    // 'weight' and 'static' orders leave groups where they are, as no order does.
    order: weights.actorder === 'group',
    type: weights.type,
    format: config.format === 'mixed-precision' ? chosen.format : config.format,
    activations: input
      ? `${input.num_bits}-bit ${input.type}, ${input.dynamic === true ? 'dynamic' : 'static'}, ${input.strategy}`
      : 'none',
  };
}

function asObject(value: unknown): Json | undefined {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Json) : undefined;
}

function show(value: unknown): string {
  return typeof value === 'string' ? value : (JSON.stringify(value) ?? 'nothing');
}
