import type { CanonicalModule } from '../../formats/canonical/schema.js';
import { gptqConfig } from '../../formats/gptq/config.js';
import type { ZeroConvention } from '../../formats/gptq/layout.js';
import { printGranularity } from '../core/granularity.js';
import { fusedName } from './fused-names.js';
import { type IntegerForm, integerForm } from './integer-form.js';
import type { PackLayout } from './layout.js';
import { firstFit, layoutTarget } from './layout-target.js';
import { leftPlain } from './left-plain.js';
import type { ReaderLimit } from './reader-limits.js';
import type { PackedModel, PackTarget } from './target.js';

/** The two conventions share everything but the bias of the zero points and a word in the config. */
export function gptqTarget(
  layout: PackLayout,
  convention: ZeroConvention,
  describe: string,
  limits: readonly ReaderLimit[],
): PackTarget {
  return layoutTarget({
    name: layout.name,
    describe,
    byName: true,
    serve: ['vllm serve DIR', 'transformers serve DIR'],
    limits,
    left: 'dense',
    choose: (moduleName, module, facts) => firstFit([layout], moduleName, module, facts),
    config: (model) => gptqModelConfig(model, convention),
  });
}

/** One config for all: the most frequent scheme, and `dynamic` rules for modules that differ or are not quantized. */
function gptqModelConfig({ checkpoint, decisions, plainLinears, roles }: PackedModel, convention: ZeroConvention) {
  const schemes = new Map<
    string,
    { module: CanonicalModule; symmetric: boolean; actOrder: boolean; names: string[] }
  >();
  for (const [name, decision] of decisions) {
    if (decision.action === 'fallback') continue;
    const module = checkpoint.module(name);
    const form = integerForm(module, { zeroRange: [0, 0] }) as IntegerForm;
    const actOrder = module.groupIndex;
    const key = `${form.bits} ${printGranularity(module.granularity)} ${form.symmetric} ${actOrder}`;
    const scheme = schemes.get(key) ?? { module, symmetric: form.symmetric, actOrder, names: [] };
    scheme.names.push(name);
    schemes.set(key, scheme);
  }
  const [main, ...others] = [...schemes.values()].sort((a, b) => b.names.length - a.names.length);
  const facts = ({ module, symmetric, actOrder }: NonNullable<typeof main>) => ({
    bits: (integerForm(module, { zeroRange: [0, 0] }) as IntegerForm).bits,
    group_size: module.granularity.kind === 'channel' ? -1 : module.granularity.size,
    desc_act: actOrder,
    sym: symmetric,
  });
  const dynamic: Record<string, Record<string, unknown>> = {};
  const plain = [...decisions].filter(([, decision]) => decision.action === 'fallback').map(([name]) => name);
  const taken = [...schemes.values()].flatMap(({ names }) => names);
  const unquantized = [...plain, ...plainLinears.filter((each) => !roles.isHead(each))];
  const { modules, patterns } = leftPlain(unquantized, taken, roles);
  const ruleOf = new Map([
    ...[...schemes].flatMap(([key, { names }]) => names.map((name) => [name, key] as const)),
    ...unquantized.map((name) => [name, 'plain'] as const),
  ]);
  // vLLM asks for the name of what it fuses alone, other loaders for that of each linear.
  const patternOf = (name: string): string => {
    const [own, fused] = [roles.pattern(name), fusedName(name, ruleOf)];
    const whole = fused === undefined ? own : roles.pattern(fused);
    return whole === own ? own : `${own}|${whole}`;
  };
  for (const other of others) for (const name of other.names) dynamic[`+:${patternOf(name)}`] = facts(other);
  for (const name of modules) {
    const pattern = patternOf(name);
    // vLLM takes a rule with the letters mtp in it for one about all such layers.
    dynamic[`-:${roles.prediction(name) ? pattern.replaceAll('mtp', 'mt[p]') : pattern}`] = {};
  }
  for (const pattern of patterns) dynamic[`-:${pattern}`] = {};
  const { provenance } = checkpoint.manifest;
  const damp = provenance.options.damp;
  const quantization = gptqConfig({
    bits: facts(main!).bits,
    granularity: main!.module.granularity,
    descAct: main!.actOrder,
    sym: main!.symmetric,
    convention,
    lmHead: [...decisions].some(([name, { action }]) => roles.isHead(name) && action !== 'fallback'),
    staticGroups: provenance.options.order === 'static',
    ...(typeof damp === 'number' ? { dampPercent: damp } : {}),
    ...(Object.keys(dynamic).length > 0 ? { dynamic } : {}),
    // Codes that another tool made are named after it (formats/foreign/open.ts): TOOL:VERSION.
    quantizer: provenance.lpq.includes(':') ? provenance.lpq : `lpq:${provenance.lpq}`,
  });
  return { quantization, files: { 'quantize_config.json': quantization } };
}
