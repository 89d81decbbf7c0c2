import type { CanonicalModule } from '../../../formats/canonical/schema.js';
import { compressedTensorsConfig, type SchemeGroup } from '../../../formats/compressed-tensors/config.js';
import { packQuantizedTensors } from '../../../formats/compressed-tensors/layout.js';
import { allocate, fromTyped, type Tensor } from '../../../native/binding.js';
import { groupCount, printGranularity } from '../../core/granularity.js';
import { pack } from '../../layout/engine.js';
import { hasForm, type IntegerForm, integerForm } from '../integer-form.js';
import { rowStreams, transposedColumnStreams } from '../layouts/stream.js';
import { groupIndex, offsetZeros } from '../operands.js';
import type { Decision, ModuleFacts, PackTarget } from '../target.js';

const SCALE_DTYPES = { f16: 'F16', bf16: 'BF16', f32: 'F32' } as const;

/** compressed-tensors, pack-quantized: dense bitstreams of 1 to 8 bits (version 0.13 and later for 3, 5, 6 and 7). */
export const compressedTensors: PackTarget = {
  name: 'compressed-tensors',
  describe: 'compressed-tensors pack-quantized for vLLM, SGLang and transformers: 1 to 8 bits, symmetric or not',

  plan(name: string, module: CanonicalModule, facts: ModuleFacts): Decision {
    const form = integerForm(module, facts);
    const fallback = (reason: string, remedy: string): Decision => ({
      action: 'fallback',
      form: 'dense',
      reason,
      remedy,
    });
    if (!hasForm(form)) return fallback(form.reason, form.remedy);
    const { dtype } = module.scales;
    if (dtype !== 'f16' && dtype !== 'bf16' && dtype !== 'f32')
      return fallback(`its scales are ${dtype}`, 'Quantize it with f16 or bf16 scales.');
    return {
      action: 'ok',
      layout: 'compressed-tensors',
      padded: module.shape,
      tensors: packQuantizedTensors(name, {
        bits: form.bits,
        shape: module.shape,
        granularity: module.granularity,
        symmetric: form.symmetric,
        scaleDtype: SCALE_DTYPES[dtype],
        groupIndex: module.groupIndex,
      }),
      notes: [],
    };
  },

  async pack(job) {
    const { rt, checkpoint, name, module, plan } = job;
    const form = integerForm(module, { zeroRange: [0, 0] }) as IntegerForm;
    const [n, k] = module.shape;
    const { bits, bias } = form;
    const out = new Map<string, Tensor>();
    const shapeOf = (part: string) => plan.tensors.find((tensor) => tensor.name === `${name}.${part}`)?.shape;
    const codes = checkpoint.require(name, 'codes');
    const packed = allocate('i32', shapeOf('weight_packed')!);
    pack(rt, rowStreams(n, k, bits), codes, packed, { streamColumns: k, bias });
    out.set(`${name}.weight_packed`, packed);
    out.set(`${name}.weight_scale`, checkpoint.require(name, 'scales'));
    out.set(`${name}.weight_shape`, fromTyped('i64', [2], BigInt64Array.of(BigInt(n), BigInt(k))));
    const zeroShape = shapeOf('weight_zero_point');
    if (zeroShape) {
      const zeros = offsetZeros(job, form);
      const zeroPoint = allocate('i32', zeroShape);
      pack(rt, transposedColumnStreams(n, groupCount(module.granularity, k), bits), zeros, zeroPoint);
      zeros.dispose();
      out.set(`${name}.weight_zero_point`, zeroPoint);
    }
    if (shapeOf('weight_g_idx')) out.set(`${name}.weight_g_idx`, groupIndex(job));
    codes.dispose();
    await rt.sync();
    return out;
  },

  config({ checkpoint, decisions, plainLinears }) {
    const groups = new Map<string, SchemeGroup & { targets: string[] }>();
    const ignore = new Set(plainLinears);
    if (!decisions.has('lm_head')) ignore.add('lm_head');
    for (const [name, decision] of decisions) {
      if (decision.action === 'fallback') {
        ignore.add(name);
        continue;
      }
      const module = checkpoint.module(name);
      const { bits, symmetric } = integerForm(module, { zeroRange: [0, 0] }) as IntegerForm;
      const actorder = module.groupIndex ? ('group' as const) : null;
      const key = `${bits} ${symmetric} ${printGranularity(module.granularity)} ${actorder}`;
      const group = groups.get(key) ?? { targets: [], bits, symmetric, granularity: module.granularity, actorder };
      group.targets.push(name);
      groups.set(key, group);
    }
    const list = [...groups.values()];
    // With one scheme the class name says it, which loaders that fuse or rename linears understand best.
    const schemes = list.length === 1 ? list.map((group) => ({ ...group, targets: ['Linear'] })) : list;
    return { quantization: compressedTensorsConfig({ groups: schemes, ignore: [...ignore].sort() }), files: {} };
  },
};
