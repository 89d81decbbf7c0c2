import type { CanonicalModule } from '../../formats/canonical/schema.js';
import { gptqConfig } from '../../formats/gptq/config.js';
import { gptqProblem, gptqTensors, type ZeroConvention } from '../../formats/gptq/layout.js';
import { allocate, type Tensor } from '../../native/binding.js';
import { groupCount, printGranularity } from '../core/granularity.js';
import { allPacked, pack } from '../layout/engine.js';
import { halfScalesProblem, hasForm, type IntegerForm, integerForm } from './integer-form.js';
import { columnStreams, transposed, transposedRowStreams } from './layouts/stream.js';
import { groupIndex, halfScales, offsetZeros } from './operands.js';
import { escaped } from './roles.js';
import type { Decision, ModuleFacts, PackedModel, PackTarget } from './target.js';

/** The two conventions share everything but the bias of the zero points and a word in the config. */
export function gptqTarget(name: 'gptq' | 'gptq_v2', convention: ZeroConvention, describe: string): PackTarget {
  return {
    name,
    describe,
    byName: true,

    plan(moduleName: string, module: CanonicalModule, facts: ModuleFacts): Decision {
      const form = integerForm(module, facts);
      const fallback = (reason: string, remedy: string): Decision => ({
        action: 'fallback',
        form: 'dense',
        reason,
        remedy,
      });
      if (!hasForm(form)) return fallback(form.reason, form.remedy);
      const scales = halfScalesProblem(module, facts, 'GPTQ');
      if (scales) return fallback(scales.reason, scales.remedy);
      const shape = { bits: form.bits, shape: module.shape, granularity: module.granularity };
      const problem = gptqProblem(shape);
      if (problem) return fallback(problem, 'Quantize it with --bits 4 or 8, or pack for compressed-tensors.');
      return {
        action: 'ok',
        layout: name,
        padded: module.shape,
        tensors: gptqTensors(moduleName, shape),
        notes: [],
      };
    },

    async pack(job) {
      const { rt, checkpoint, name: moduleName, module } = job;
      const form = integerForm(module, { zeroRange: [0, 0] }) as IntegerForm;
      const [n, k] = module.shape;
      const { bits, bias } = form;
      const groups = groupCount(module.granularity, k);
      const out = new Map<string, Tensor>();
      for (const { name: tensor, dtype, shape } of job.plan.tensors)
        if (!tensor.endsWith('.g_idx')) out.set(tensor, allocate(dtype === 'F16' ? 'f16' : 'i32', shape));
      const at = (part: string): Tensor => out.get(`${moduleName}.${part}`)!;
      const codes = checkpoint.require(moduleName, 'codes');
      const scales = await halfScales(rt, checkpoint.require(moduleName, 'scales'));
      const zeros = offsetZeros(job, form);
      pack(rt, columnStreams(n, k, bits), codes, at('qweight'), { streamColumns: k, bias });
      const stored = convention === 'v1' ? 2 ** bits - 1 : 0; // minus one
      pack(rt, transposedRowStreams(n, groups, bits), zeros, at('qzeros'), { bias: stored });
      pack(rt, transposed(n, groups, 16), scales, at('scales'));
      out.set(`${moduleName}.g_idx`, groupIndex(job));
      for (const tensor of [codes, scales, zeros]) tensor.dispose();
      await allPacked(rt);
      return out;
    },

    config: (model) => gptqModelConfig(model, convention),
  };
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
  const exactly = (name: string): string => `^${escaped(name)}$`;
  const dynamic: Record<string, Record<string, unknown>> = {};
  for (const other of others) for (const name of other.names) dynamic[`+:${exactly(name)}`] = facts(other);
  const plain = [...decisions].filter(([, decision]) => decision.action === 'fallback').map(([name]) => name);
  for (const name of [...plain, ...plainLinears.filter((each) => !roles.isHead(each))])
    dynamic[`-:${exactly(name)}`] = {};
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
