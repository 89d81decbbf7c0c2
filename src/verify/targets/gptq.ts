import type { ArtifactManifest } from '../../../formats/artifact/schema.js';
import { Patterns } from '../../core/patterns.js';
import { asObject, checkKeys, ELSEWHERE, type Fail, type Json, Maybe } from '../keys.js';
import type { Linear, ModelLinears } from '../linears.js';
import { plainScheme, type Reading, type Scheme, type VerifiedTarget } from '../target.js';

const SCHEME = { bits: ELSEWHERE, group_size: ELSEWHERE, desc_act: ELSEWHERE, sym: ELSEWHERE };

/** GPTQ: one scheme, and GPTQModel's `dynamic` rules, '+:REGEX' with what differs and '-:REGEX' for what is plain. */
function read(fail: Fail, config: Json, manifest: ArtifactManifest, { linears }: ModelLinears): Reading {
  const { lpq, options } = manifest.provenance;
  const dynamic = Object.entries(asObject(config.dynamic) ?? {});
  const patterns = new Patterns(
    "quantization_config: 'dynamic'",
    dynamic.map(([rule]) => rule.replace(/^[+-]:/, '')),
  );
  const rules = new Map([...linears.keys()].map((name) => [name, patterns.first(name)]));
  const used = new Set(rules.values());
  checkKeys(fail, 'quantization_config', config, {
    quant_method: 'gptq',
    checkpoint_format: manifest.target,
    ...SCHEME,
    static_groups: options.order === 'static',
    true_sequential: true,
    lm_head: [...linears.values()].some(({ head, module }) => head && module && module.layout !== 'dense'),
    damp_percent: typeof options.damp === 'number' ? options.damp : 0.01,
    pack_dtype: 'int32',
    dynamic: new Maybe(ELSEWHERE),
    meta: { quantizer: [lpq.includes(':') ? lpq : `lpq:${lpq}`] },
  });
  if (config.dynamic !== undefined && dynamic.length === 0)
    fail('quantization_config.dynamic holds no rules', config.dynamic);
  for (const [i, [rule, change]] of dynamic.entries()) {
    const where = `quantization_config.dynamic['${rule}']`;
    if (!/^[+-]:/.test(rule)) fail(`${where} neither adds nor leaves out`, rule, '+:REGEX or -:REGEX');
    checkKeys(fail, where, asObject(change) ?? {}, rule.startsWith('-:') ? {} : SCHEME);
    if (!used.has(i)) fail(`${where} matches no linear of the model`);
  }
  const packed = [...linears.values()].filter(({ module }) => module?.layout === manifest.target);
  if (!packed.some(({ name }) => rules.get(name) === -1))
    fail('quantization_config states a scheme that no module has', config.bits);
  return {
    scheme({ name, head }: Linear): Scheme | undefined {
      const [rule, change] = dynamic[rules.get(name) ?? -1] ?? ['', undefined];
      // Loaders quantize what is inside blocks, and the head when they are told to.
      if (rule.startsWith('-:') || (head && config.lm_head !== true)) return undefined;
      const chosen = { ...config, ...asObject(change) };
      return { bits: chosen.bits, group: chosen.group_size, sym: chosen.sym, order: chosen.desc_act };
    },
    byName: () => false,
  };
}

/** The convention has the name of its layout, and checkpoint_format is that. */
function gptqTarget(name: string): VerifiedTarget {
  return {
    name,
    layouts: [name],
    left: 'dense',
    files: ['quantize_config.json'],
    config: {
      read,
      scheme: (module) => ({ ...plainScheme(module), order: module.canonical.g_idx !== undefined }),
    },
  };
}

export const gptq = gptqTarget('gptq');
export const gptqV2 = gptqTarget('gptq_v2');
