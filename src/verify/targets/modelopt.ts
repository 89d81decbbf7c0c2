import type { ArtifactManifest, PackedModule } from '../../../formats/artifact/schema.js';
import { asObject, checkKeys, ELSEWHERE, type Fail, type Json, strings } from '../keys.js';
import { isPacked } from '../layouts/index.js';
import type { ModelLinears } from '../linears.js';
import { plainScheme, type Reading, type Scheme, type VerifiedTarget } from '../target.js';

/** quant_algo by layout, and the group that is stated with it. */
const ALGOS: Readonly<Record<string, { readonly algo: string; readonly group?: number }>> = {
  'modelopt-fp8': { algo: 'FP8_PER_CHANNEL_PER_TOKEN' },
  'modelopt-nvfp4': { algo: 'NVFP4', group: 16 },
  'modelopt-w4a16-nvfp4': { algo: 'W4A16_NVFP4', group: 16 },
  'mxfp8-quantized': { algo: 'MXFP8' },
};

const PRODUCER = { name: 'modelopt', version: '0.47.0' };

/** ModelOpt: one algorithm, or one a module; a linear is plain when an entry of ignore is part of its name, or begins it (PART*). */
function read(fail: Fail, config: Json, { modules, kvScales }: ArtifactManifest, model: ModelLinears): Reading {
  const packed = Object.entries(modules).filter(([, { layout }]) => isPacked(layout));
  const algos = new Set(packed.map(([, { layout }]) => ALGOS[layout]?.algo));
  const mixed = algos.size > 1;
  const [first] = packed.map(([, { layout }]) => ALGOS[layout]);
  checkKeys(fail, 'quantization_config', config, {
    quant_method: 'modelopt',
    quant_algo: mixed ? 'MIXED_PRECISION' : first?.algo,
    ...(mixed ? { quantized_layers: ELSEWHERE } : first?.group !== undefined && { group_size: first.group }),
    kv_cache_scheme: kvScales ? { dynamic: false, num_bits: 8, type: 'float' } : null,
    ignore: ELSEWHERE,
    producer: PRODUCER,
  });
  const ignore = strings(config.ignore);
  const leaves = (name: string) =>
    ignore.some((each) => (each.endsWith('*') ? name.startsWith(each.slice(0, -1)) : name.includes(each)));
  const plain = [...model.linears.values()].filter(({ module }) => !module || !isPacked(module.layout));
  const known = [...plain.map(({ name }) => name), ...model.others];
  for (const item of ignore)
    if (
      item !== 'lm_head' &&
      !known.some((name) => (item.endsWith('*') ? name.startsWith(item.slice(0, -1)) : name === item))
    )
      fail(`quantization_config.ignore names '${item}', which is no plain linear of the model`, item);
  const layers = asObject(config.quantized_layers) ?? {};
  if (mixed)
    for (const name of Object.keys(layers))
      if (!Object.hasOwn(modules, name))
        fail(`quantization_config.quantized_layers names '${name}', which is not packed`, name);
  return {
    scheme({ name }): Scheme | undefined {
      if (leaves(name)) return undefined;
      const layer = mixed ? asObject(layers[name]) : config;
      return layer && { ...NOTHING, format: layer.quant_algo, group: layer.group_size };
    },
    byName: () => false,
  };
}

/** quant_algo says all of it in one word. */
const NOTHING = { bits: undefined, sym: undefined };

function schemeOf(module: PackedModule): Scheme {
  const { algo, group } = ALGOS[module.layout] ?? {};
  return { ...plainScheme(module), ...NOTHING, format: algo, group };
}

export const modelopt: VerifiedTarget = {
  ...{ name: 'modelopt', layouts: Object.keys(ALGOS), left: 'dense', files: ['hf_quant_config.json'] },
  kvScale: (attention, side) => ({
    name: `${attention}${attention.endsWith('.self_attn') ? `.${side}_proj` : ''}.${side}_scale`,
    shape: [],
  }),
  config: { read, scheme: schemeOf },
  beside: {
    file: 'hf_quant_config.json',
    says({ quant_method: _, kv_cache_scheme: cache, ignore, producer, ...said }) {
      return {
        producer,
        quantization: { ...said, kv_cache_quant_algo: cache ? 'FP8' : null, exclude_modules: ignore },
      };
    },
  },
};
