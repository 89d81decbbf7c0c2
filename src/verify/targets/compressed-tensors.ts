import type { ArtifactManifest, PackedModule } from '../../../formats/artifact/schema.js';
import { quantType } from '../../core/quant-type.js';
import { asObject, checkKeys, ELSEWHERE, type Fail, type Json, strings } from '../keys.js';
import { type CompressedForm, isSymmetric } from '../layout.js';
import { layoutOf } from '../layouts/index.js';
import type { Linear, ModelLinears } from '../linears.js';
import { NameList } from '../patterns.js';
import { plainScheme, type Reading, type Scheme, type VerifiedTarget } from '../target.js';

/** The storage form of a packed module, by the format's name. */
const formOf = ({ layout }: PackedModule): CompressedForm => layoutOf(layout)?.compressed ?? { format: layout };

/** compressed-tensors: groups of modules by exact name, re:REGEX or class, and a list of what is plain. */
function read(
  rounds: Rounds,
  fail: Fail,
  config: Json,
  { kvScales }: Pick<ArtifactManifest, 'kvScales'>,
  model: ModelLinears,
): Reading {
  const linears = [...model.linears.values()];
  const packed = linears.filter(({ module }) => module !== undefined && module.layout !== 'dense');
  const forms = [...new Set(packed.map(({ module }) => formOf(module as PackedModule).format))];
  const mixed = forms.length > 1;
  checkKeys(fail, 'quantization_config', config, {
    quant_method: 'compressed-tensors',
    format: mixed ? 'mixed-precision' : (forms[0] ?? 'dense'),
    quantization_status: 'compressed',
    global_compression_ratio: null,
    ignore: ELSEWHERE,
    kv_cache_scheme: kvScales ? STATIC_FP8 : null,
    config_groups: ELSEWHERE,
  });
  const ignore = new NameList("quantization_config: 'ignore'", strings(config.ignore));
  const groups = Object.entries(asObject(config.config_groups) ?? {}).map(
    ([key, value]): Group => ({
      key,
      group: asObject(value) ?? {},
      targets: new NameList("quantization_config: 'targets'", strings(asObject(value)?.targets)),
    }),
  );
  const groupOf = (linear: Linear, classes: readonly string[]): Group | undefined => {
    const { name } = linear;
    if (ignore.names(name) || classes.some((each) => ignore.has(each))) return undefined;
    return (
      groups.find(({ targets }) => targets.has(name)) ??
      groups.find(({ targets }) => targets.names(name)) ??
      groups.find(({ targets }) => classes.some((each) => targets.has(each)))
    );
  };
  const owners = new Map(linears.map((linear) => [linear, groupOf(linear, classesOf(linear))]));
  for (const linear of packed) {
    const { name, transposed, head } = linear;
    const own = transposed ? 'Conv1D' : head ? 'ParallelLMHead' : 'Linear';
    if (owners.get(linear) && !groupOf(linear, [own]))
      fail(`quantization_config leaves out module '${name}' in loaders whose class for it is ${own}`, own);
  }
  for (const each of groups) {
    const { key, group, targets } = each;
    const where = `quantization_config.config_groups.${key}`;
    const mine = packed.filter((linear) => owners.get(linear) === each);
    const [first] = mine;
    if (!/^group_\d+$/.test(key) || !first) {
      fail(`${where} is a group without a packed module`, key);
      continue;
    }
    const module = first.module as PackedModule;
    checkKeys(fail, where, group, {
      targets: ELSEWHERE,
      weights: ELSEWHERE,
      input_activations: rounds(module),
      output_activations: null,
      format: ELSEWHERE,
    });
    checkKeys(fail, `${where}.weights`, asObject(group.weights) ?? {}, weightArguments(module));
    const used = new Set(
      mine.flatMap((linear) => [linear.name, ...classesOf(linear), ...targets.matching(linear.name)]),
    );
    for (const item of targets.items)
      if (!used.has(item)) fail(`${where}.targets names '${item}', which is not a module of the group`, item);
  }
  const plain = linears.filter(({ module }) => !module || module.layout === 'dense').map(({ name }) => name);
  const known = new Set([...plain, ...model.others].flatMap((name) => [name, ...ignore.matching(name)]));
  for (const item of ignore.items)
    if (item !== 'lm_head' && !known.has(item))
      fail(`quantization_config.ignore names '${item}', which is not a plain linear of the model`, item);
  return {
    scheme(linear): Scheme | undefined {
      const group = owners.get(linear)?.group;
      const weights = asObject(group?.weights);
      if (!group || !weights) return undefined;
      const block = Array.isArray(weights.block_structure) ? weights.block_structure.join(' x ') : undefined;
      const input = asObject(group.input_activations);
      return {
        bits: weights.num_bits,
        group: { channel: -1, block, tensor: 'tensor' }[String(weights.strategy)] ?? weights.group_size,
        sym: weights.symmetric,
        // 'weight' and 'static' orders leave groups where they are, as no order does.
        order: weights.actorder === 'group',
        type: weights.type,
        format: group.format,
        activations: inWords(input),
      };
    },
    byName: (name) => !ignore.names(name) && groups.some(({ targets }) => targets.names(name)),
  };
}

interface Group {
  readonly key: string;
  readonly group: Json;
  readonly targets: NameList;
}

/** Loaders disagree on the class of a Conv1D and of the head: a plain one must be left out under each name. */
function classesOf({ head, transposed }: Linear): string[] {
  return ['Linear', ...(transposed ? ['Conv1D'] : []), ...(head ? ['ParallelLMHead'] : [])];
}

/** `weights` of a group, whole. */
function weightArguments(module: PackedModule): Json {
  const { granularity, scales } = module;
  const block = formOf(module).whole
    ? (scales.stored ?? (granularity.kind === 'group' ? scales.block : undefined))
    : undefined;
  const size = granularity.kind === 'group' ? granularity.size : null;
  const strategy =
    block === 'tensor'
      ? 'tensor'
      : block
        ? 'block'
        : size === null
          ? 'channel'
          : scales.global
            ? 'tensor_group'
            : 'group';
  const { bits, kind } = quantType(module.type);
  return {
    ...tokens(bits, kind),
    symmetric: kind === 'float' || isSymmetric(module),
    strategy,
    group_size: strategy === 'group' || strategy === 'tensor_group' ? size : null,
    block_structure: Array.isArray(block) ? [...block] : null,
    dynamic: false,
    actorder: module.canonical.g_idx === undefined ? null : 'group',
    observer: 'minmax',
    ...(formOf(module).scaleDtype !== undefined && { scale_dtype: formOf(module).scaleDtype }),
  };
}

/** `input_activations` of a module, whole; null where activations keep their 16 bits. */
type Rounds = (module: PackedModule) => Json | null;

/** Activations that the engine rounds as it runs: nothing is observed. */
function tokens(bits: number, type: string): Json {
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

/** FP8 with one scale that is stored. */
const STATIC_FP8: Json = { ...tokens(8, 'float'), strategy: 'tensor', dynamic: false, observer: 'static_minmax' };

/** NVFP4: scales of 16 values in E4M3 are made as it runs, under a second level that is stored. */
const NVFP4_INPUT: Json = {
  ...tokens(4, 'float'),
  ...{ strategy: 'tensor_group', group_size: 16, dynamic: 'local', observer: 'static_minmax' },
  scale_dtype: 'torch.float8_e4m3fn',
};

/** MXFP8, made as it runs. */
const MXFP8_INPUT: Json = {
  ...{ ...tokens(8, 'float'), strategy: 'group', group_size: 32, scale_dtype: 'torch.uint8' },
};

function inWords(input: Json | null | undefined): string {
  if (!input) return 'none';
  const made = { true: 'dynamic', false: 'static' }[String(input.dynamic)] ?? String(input.dynamic);
  return `${input.num_bits}-bit ${input.type}, ${made}, ${input.strategy}`;
}

/** `codes`: lpq's kernels multiply what activations are rounded to. */
function compressedTarget(name: string, layouts: readonly string[], rounds: Rounds, codes = false): VerifiedTarget {
  return {
    ...{ name, layouts, left: 'dense', files: [] },
    ...(codes && { activations: 'tokens' }),
    kvScale: (attention, side) => ({ name: `${attention}.${side}_scale`, shape: [1] }),
    config: {
      read: (fail, config, manifest, model) => read(rounds, fail, config, manifest, model),
      scheme(module) {
        return {
          ...plainScheme(module),
          order: module.canonical.g_idx !== undefined,
          type: quantType(module.type).kind,
          format: formOf(module).format,
          activations: inWords(rounds(module)),
        };
      },
    },
  };
}

export const compressedTensors = compressedTarget(
  'compressed-tensors',
  ['compressed-tensors', 'float-quantized', 'mxfp8-quantized', 'nvfp4-pack-quantized', 'mxfp4-pack-quantized'],
  () => null,
);

/** Weights and activations of 8 bits. */
export const compressedTensorsW8A8 = compressedTarget(
  'compressed-tensors-w8a8',
  ['int-quantized', 'float-quantized', 'float-quantized-static', 'mxfp8-quantized'],
  (module) => {
    const { type, inputMost } = module;
    if (formOf(module).scaleDtype !== undefined) return MXFP8_INPUT;
    const { bits, kind } = quantType(type);
    return inputMost === undefined ? tokens(bits, kind) : STATIC_FP8;
  },
  true,
);

/** 4-bit integers in groups of 128, activations in FP8. */
export const compressedTensorsW4A8 = compressedTarget('compressed-tensors-w4a8', ['compressed-tensors'], () =>
  tokens(8, 'float'),
);

/** Weights and activations in NVFP4. */
export const compressedTensorsW4A4 = compressedTarget('compressed-tensors-w4a4', ['nvfp4-w4a4'], () => NVFP4_INPUT);
