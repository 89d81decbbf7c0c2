import { typed } from '../../native/binding.js';
import { tell } from '../../src/core/activity.js';
import { textOf } from '../../src/core/text-of.js';
import { plainModule } from '../compressed-tensors/plain-modules.js';
import type { WeightScheme } from '../compressed-tensors/read-schemes.js';
import {
  badSetting,
  type ForeignContext,
  type ForeignModule,
  type ForeignModules,
  foreign,
  inPlace,
  readEach,
  required,
  requireShape,
  stems,
} from '../foreign/module.js';

type Settings = Readonly<Record<string, unknown>>;
type Read = (ctx: ForeignContext, name: string) => ForeignModule;

/** Weights of NVFP4 that share a scale. */
const GROUP = 16;

/** How the weights of each quant_algo are stored. */
const ALGOS: Readonly<Record<string, Read>> = {
  FP8: (ctx, name) => fp8(ctx, name, 'tensor'),
  FP8_PER_CHANNEL_PER_TOKEN: (ctx, name) => fp8(ctx, name, 'channel'),
  MXFP8: (ctx, name) => fp8(ctx, name, 'group'),
  NVFP4: nvfp4,
  W4A16_NVFP4: nvfp4,
};

/**
 * Modules of a checkpoint of NVIDIA's ModelOpt: hf_quant_config.json, or quantization_config of quant_method modelopt, names one quant_algo
 * or, as MIXED_PRECISION, one a module (quantized_layers). Scales of activations and of the cache of keys and values are not taken:
 * weights are read for 16 bits. Throws LPQ_CONFIG for an algorithm that it does not name.
 */
export function modelOptModules(ctx: ForeignContext): ForeignModules {
  const settings = (ctx.settings.quantization ?? ctx.settings) as Settings;
  const names = stems(ctx.weights, 'weight_scale');
  const reader = readerOf(ctx.where, settings);
  return readEach(names, (name) => {
    tell(`reading ${name}`);
    return reader(name)(ctx, name);
  });
}

function readerOf(where: string, settings: Settings): (name: string) => Read {
  const known = (key: string, algo: unknown): Read => {
    const found = typeof algo === 'string' ? ALGOS[algo.toUpperCase()] : undefined;
    return found ?? badSetting(where, key, algo, Object.keys(ALGOS).join(', '));
  };
  const { quant_algo: algo, quantized_layers: layers } = settings;
  if (textOf(algo).toUpperCase() !== 'MIXED_PRECISION') {
    const one = known('quant_algo', algo);
    return () => one;
  }
  if (typeof layers !== 'object' || layers === null)
    return badSetting(where, 'quantized_layers', layers, 'an object that names the algorithm of each module');
  return (name) => {
    const layer = (layers as Readonly<Record<string, Settings>>)[name];
    return known(`quantized_layers of '${name}'`, layer?.quant_algo);
  };
}

function fp8(ctx: ForeignContext, name: string, strategy: 'tensor' | 'channel' | 'group'): ForeignModule {
  const grouped = strategy === 'group';
  const scheme: WeightScheme = {
    ...{ group: 'quant_algo', targets: [], bits: 8, type: 'float', symmetric: true },
    format: grouped ? 'mxfp8-quantized' : 'float-quantized',
    ...{ strategy, groupSize: grouped ? 32 : undefined, block: undefined, actorder: null },
  };
  const module = plainModule(ctx, name, scheme);
  if (module) return withoutActivations(ctx, module);
  return foreign(`'${name}.weight' of ${ctx.dir} is not in FP8, as its settings say`, {
    got: ctx.weights.dtype(`${name}.weight`),
    expected: 'F8_E4M3',
  });
}

/** E2M1 codes two a byte, the even one low, scales in E4M3 and a second level in F32 that multiplies them. */
function nvfp4(ctx: ForeignContext, name: string): ForeignModule {
  const packed = required(ctx, `${name}.weight`, ['U8'], 2);
  const [n, half] = packed.shape as [number, number];
  const k = half * 2;
  const scale = required(ctx, `${name}.weight_scale`, ['F8_E4M3'], 2);
  requireShape(ctx, scale, [n, k / GROUP], `a scale for every ${GROUP} of ${k} input features`);
  const second = `${name}.weight_scale_2`;
  const rank = ctx.weights.has(second) ? Math.min(1, ctx.weights.shape(second).length) : 1;
  const global = required(ctx, second, ['F32'], rank);
  if (rank === 1) requireShape(ctx, global, [1], 'one number');
  const tensor = ctx.weights.tensor(second);
  const factor = typed<Float32Array>(tensor)[0] as number;
  tensor.dispose();
  if (!(factor > 0 && Number.isFinite(factor)))
    foreign(`tensor '${second}' of ${ctx.dir} is not a factor of weights`, { got: factor });
  return withoutActivations(ctx, {
    name,
    declaration: {
      type: 'f4e2m1',
      shape: [n, k],
      granularity: { kind: 'group', size: GROUP },
      scales: { dtype: 'f8_e4m3', block: [1, GROUP], global: true },
      zeros: { kind: 'none' },
      ...inPlace(ctx),
    },
    tensors: [packed.name, scale.name, second],
    notes: [],
    decode(part): ArrayBufferView {
      if (part === 'global_scale') return Float32Array.of(factor);
      return typed<Uint8Array>(ctx.weights.tensor(part === 'codes' ? packed.name : scale.name));
    },
  });
}

function withoutActivations(ctx: ForeignContext, module: ForeignModule): ForeignModule {
  const scale = `${module.name}.input_scale`;
  if (!ctx.weights.has(scale)) return module;
  const note = 'lpq ignores its scale of activations (input_scale): it reads weights for 16-bit activations';
  return { ...module, tensors: [...module.tensors, scale], notes: [...module.notes, note] };
}
