import { type CompressedScheme, quantizationConfig } from '../../../formats/compressed-tensors/schemes.js';
import type { CompressedLayout } from '../compressed.js';
import type { NoForm } from '../integer-form.js';
import { fits } from '../layout.js';
import { type Choice, layoutTarget } from '../layout-target.js';
import { mxfp4Layout, nvfp4Input, nvfp4Layout } from '../layouts/fp4.js';
import { mxfp8Input, mxfp8Layout } from '../layouts/mxfp8.js';
import { packQuantized, packQuantizedW4A8 } from '../layouts/pack-quantized.js';
import { floatQuantized, floatStatic, floatTokens, intQuantized } from '../layouts/whole-bytes.js';
import { leftPlain } from '../left-plain.js';
import { COMPRESSED, HALF_SCALES, type ReaderLimit } from '../reader-limits.js';
import type { ModelRoles } from '../roles.js';
import type { PackTarget } from '../target.js';

/** The forms in the order in which a module tries them; the reason of the last related one is told. */
function compressedTarget(
  name: string,
  describe: string,
  layouts: readonly CompressedLayout[],
  limits: readonly ReaderLimit[] = [],
): PackTarget {
  const ofLayouts = layouts.flatMap(({ name: layout, limits: own = [] }) =>
    own.map(({ applies, says }): ReaderLimit => {
      return { says, applies: (module, model) => module.layout === layout && applies(module, model) };
    }),
  );
  return layoutTarget({
    name,
    describe,
    byName: true,
    serve: ['vllm serve DIR', 'transformers serve DIR'],
    limits: [...COMPRESSED, ...ofLayouts, ...limits],
    left: 'dense',
    kvScale: (attention, side) => ({ name: `${attention}.${side}_scale`, dtype: 'F32', shape: [1] }),

    choose(moduleName, module, facts): Choice | NoForm {
      if (module.transposed)
        return {
          reason: 'its class is not Linear, and the compressed-tensors library quantizes only Linear',
          remedy: 'Pack it for gptq.',
        };
      const reasons: NoForm[] = [];
      for (const layout of layouts) {
        const fit = layout.fit(moduleName, module, facts);
        if (fits(fit)) return { layout, fit };
        reasons.push(fit);
      }
      // A form of the module's own kind of codes says most about it.
      return reasons.find(({ reason }) => !/^it holds /.test(reason)) ?? (reasons[0] as NoForm);
    },

    config({ checkpoint, decisions, plainLinears, roles }) {
      const groups = new Map<string, CompressedScheme & { targets: string[] }>();
      const ignore = new Set(plainLinears);
      if (![...decisions.keys()].some(roles.isHead)) ignore.add(roles.head);
      for (const [moduleName, decision] of decisions) {
        if (decision.action === 'fallback') {
          ignore.add(moduleName);
          continue;
        }
        const layout = layouts.find((each) => each.name === decision.layout) as CompressedLayout;
        const scheme = layout.scheme(checkpoint.module(moduleName));
        const key = JSON.stringify(scheme);
        const group = groups.get(key) ?? { ...scheme, targets: [] };
        group.targets.push(moduleName);
        groups.set(key, group);
      }
      const list = [...groups.values()];
      // With one scheme the class name says it, which loaders that fuse or rename linears understand best; vLLM's head is no Linear.
      const schemes =
        list.length === 1
          ? list.map((group) => ({ ...group, targets: ['Linear', ...group.targets.filter(roles.isHead)] }))
          : list.map((group) => ({ ...group, targets: group.targets.map((each) => target(each, roles)) }));
      const taken = [...decisions].flatMap(([name, { action }]) => (action === 'fallback' ? [] : [name]));
      const { modules, patterns } = leftPlain(ignore, taken, roles);
      const left = modules.map((each) => (roles.nested || roles.aliased(each) ? `re:${roles.pattern(each)}` : each));
      left.push(...patterns.map((each) => `re:${each}`));
      // Its plain name, too, which loaders look for before they build a head.
      if (roles.nested && ignore.has(roles.head)) left.push(roles.head);
      const kvScales = checkpoint.manifest.kvMost !== undefined;
      const said = { groups: schemes, ignore: [...new Set(left)].sort(), kvScales };
      return { quantization: quantizationConfig(said), files: {} };
    },
  });
}

/** Loaders that hold experts in one tensor take the group of a regular expression that speaks of experts for theirs. */
function target(name: string, roles: ModelRoles): string {
  return roles.isExpert(name) || roles.nested ? `re:${roles.pattern(name)}` : name;
}

/** Weights only: dense bitstreams of 1 to 8 bits (version 0.13 and later for 3, 5, 6 and 7), FP8, NVFP4, MXFP4. */
export const compressedTensors = compressedTarget(
  'compressed-tensors',
  'compressed-tensors for vLLM, SGLang and transformers: integers of 1 to 8 bits, symmetric or not, FP8, MXFP8, NVFP4, MXFP4',
  [packQuantized, floatQuantized, mxfp8Layout, nvfp4Layout, mxfp4Layout],
  [HALF_SCALES],
);

/** Weights and activations of 8 bits: activations are rounded by the engine, one scale per token, or one that was calibrated. */
export const compressedTensorsW8A8 = compressedTarget(
  'compressed-tensors-w8a8',
  'compressed-tensors with 8-bit activations (one scale per token, or for FP8 a calibrated scale): INT8 or FP8 weights, one scale per row, and MXFP8',
  [intQuantized, mxfp8Input, floatStatic, floatTokens],
);

/** 4-bit weights and FP8 activations, one scale per token. */
export const compressedTensorsW4A8 = compressedTarget(
  'compressed-tensors-w4a8',
  'compressed-tensors with FP8 activations (dynamic, one scale per token): 4-bit integers in groups of 128',
  [packQuantizedW4A8],
);

/** Weights and activations in NVFP4; the second level of activations was calibrated. */
export const compressedTensorsW4A4 = compressedTarget(
  'compressed-tensors-w4a4',
  'compressed-tensors with NVFP4 activations (quantize --input-scales): NVFP4 weights',
  [nvfp4Input],
);
