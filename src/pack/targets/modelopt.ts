import { modelOptConfig } from '../../../formats/modelopt/config.js';
import { LpqError } from '../../core/error.js';
import type { NoForm } from '../integer-form.js';
import { fits } from '../layout.js';
import { type Choice, layoutTarget } from '../layout-target.js';
import {
  type ModelOptLayout,
  modelOptFp8,
  modelOptMxfp8,
  modelOptNvfp4,
  modelOptNvfp4Input,
} from '../layouts/modelopt.js';
import { leftPlain } from '../left-plain.js';
import { MODELOPT_EXPERTS } from '../reader-limits.js';
import type { PackTarget } from '../target.js';

const LAYOUTS: readonly ModelOptLayout[] = [modelOptNvfp4Input, modelOptNvfp4, modelOptMxfp8, modelOptFp8];

/** What NVIDIA's ModelOpt exports: FP8, MXFP8, NVFP4, one for all modules or one each. */
export const modelopt: PackTarget = layoutTarget({
  name: 'modelopt',
  byName: true,
  serve: ['vllm serve DIR', 'trtllm-serve DIR'],
  describe:
    'ModelOpt (hf_quant_config.json) for TensorRT-LLM, vLLM and SGLang: FP8 with one scale per row, MXFP8, NVFP4, mixed types',
  limits: [{ ...MODELOPT_EXPERTS, applies: ({ layout, expert }) => expert && layout === modelOptFp8.name }],
  left: 'dense',
  kvScale: (attention, side) => ({
    name: `${attention}${attention.endsWith('.self_attn') ? `.${side}_proj` : ''}.${side}_scale`,
    dtype: 'F32',
    shape: [],
  }),

  choose(name, module, facts): Choice | NoForm {
    if (module.transposed) return { reason: 'its class is not Linear', remedy: 'Pack it for gptq.' };
    const reasons: NoForm[] = [];
    for (const layout of LAYOUTS) {
      const fit = layout.fit(name, module, facts);
      if (fits(fit)) return { layout, fit };
      reasons.push(fit);
    }
    // A form of the module's own kind of codes says most about it.
    return reasons.findLast(({ reason }) => !/^it holds /.test(reason)) ?? (reasons.at(-1) as NoForm);
  },

  config({ checkpoint, decisions, plainLinears, roles }) {
    const layoutOf = new Map(LAYOUTS.map((layout) => [layout.name, layout]));
    const modules = new Map(
      [...decisions].flatMap(([name, decision]) =>
        decision.action === 'fallback' ? [] : [[name, layoutOf.get(decision.layout) as ModelOptLayout] as const],
      ),
    );
    const unquantized = new Set(plainLinears);
    for (const [name, { action }] of decisions) if (action === 'fallback') unquantized.add(name);
    if (![...decisions.keys()].some(roles.isHead)) unquantized.add(roles.head);
    const { modules: left, layers } = leftPlain(unquantized, modules.keys(), roles);
    const plain = [...left, ...layers.map((each) => `${each}*`)].sort();
    for (const name of left) {
      const inside = [...modules.keys()].find((module) => module.includes(name));
      if (inside !== undefined)
        throw new LpqError(
          'LPQ_PACK',
          `ModelOpt cannot leave '${name}' plain: its loaders would leave '${inside}' too`,
          {
            expected: 'no plain linear whose name is part of the name of a quantized one',
            hint: 'Pack for compressed-tensors, which names modules exactly.',
          },
        );
    }
    const { file, inline } = modelOptConfig({ modules, plain, kvScales: checkpoint.manifest.kvMost !== undefined });
    return { quantization: inline, files: { 'hf_quant_config.json': file } };
  },
});
