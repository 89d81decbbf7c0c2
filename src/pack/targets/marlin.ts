import type { CanonicalModule } from '../../../formats/canonical/schema.js';
import { allocate, type Tensor } from '../../../native/binding.js';
import { groupCount } from '../../core/granularity.js';
import { pack } from '../../layout/engine.js';
import { hasForm, integerForm } from '../integer-form.js';
import { marlinScales, marlinWeight } from '../layouts/marlin.js';
import type { Decision, ModuleFacts, PackTarget } from '../target.js';

/** Tile sizes that MARLIN's own kernel asks of K and N; newer ports accept less, and these too. */
const STEP_K = 128;
const STEP_N = 256;
const GROUP = 128;

/**
 * MARLIN, 4 bits: MODULE.B I32 [K/16, 2N] of codes with zero point 8, MODULE.s F16 [G, N], or [1, N] per channel
 * (MARLIN, section 3.4). K and N are padded to multiples of 128 and 256 with code 8 and scale +0: the padding decodes to
 * exactly 0 whatever the activations there. A kernel is run with A padded by K, and columns of C beyond N ignored.
 */
export const marlin: PackTarget = {
  name: 'marlin',
  describe: 'MARLIN 4-bit weights for mma.m16n8k16: symmetric i4 or u4, f16 scales, groups of 128 or per channel',

  plan(name: string, module: CanonicalModule, facts: ModuleFacts): Decision {
    const fallback = (reason: string, remedy: string): Decision => ({
      action: 'fallback',
      form: 'carried',
      reason,
      remedy,
    });
    const form = integerForm(module, facts);
    if (!hasForm(form)) return fallback(form.reason, form.remedy);
    if (form.bits !== 4)
      return fallback(`it has ${form.bits}-bit codes and MARLIN 4-bit ones`, 'Quantize it with --bits 4.');
    if (!form.symmetric) return fallback('it is asymmetric and MARLIN has no zero points', 'Quantize it with --sym.');
    if (module.scales.dtype !== 'f16')
      return fallback(`its scales are ${module.scales.dtype} and MARLIN reads f16`, 'Quantize it with f16 scales.');
    if (module.groupIndex)
      return fallback(
        'its columns are in activation order',
        'Quantize it with --order static, which keeps them in place.',
      );
    const [n, k] = module.shape;
    const { granularity } = module;
    if (granularity.kind === 'group' && granularity.size !== GROUP)
      return fallback(
        `its groups are ${granularity.size} long and MARLIN reads groups of ${GROUP} or whole rows`,
        `Quantize it with --group-size ${GROUP} or channel.`,
      );
    const padded = [Math.ceil(n / STEP_N) * STEP_N, Math.ceil(k / STEP_K) * STEP_K] as const;
    const groups = groupCount(granularity, k);
    const notes: string[] = [];
    if (padded[0] !== n || padded[1] !== k)
      notes.push(
        `Padded from N = ${n}, K = ${k} to N = ${padded[0]}, K = ${padded[1]} with code 8 and scale 0, which decode to 0.`,
      );
    // The kernel knows a single row of scales as per channel, whatever made it single.
    if (groups === 1 && granularity.kind === 'group')
      notes.push(`Its one group of ${k} spans the row, so the scales are in the order of per-channel ones.`);
    return {
      action: padded[0] !== n || padded[1] !== k ? 'pad' : 'ok',
      layout: 'marlin',
      padded,
      tensors: [
        { name: `${name}.B`, dtype: 'I32', shape: [padded[1] / 16, padded[0] * 2] },
        { name: `${name}.s`, dtype: 'F16', shape: [groups, padded[0]] },
      ],
      notes,
    };
  },

  async pack({ rt, checkpoint, name, module, plan }) {
    const form = integerForm(module, {});
    const bias = hasForm(form) ? form.bias : 0;
    const [n, k] = plan.padded;
    const [b, s] = plan.tensors.map(({ dtype, shape }) => allocate(dtype === 'I32' ? 'i32' : 'f16', shape)) as [
      Tensor,
      Tensor,
    ];
    const codes = checkpoint.require(name, 'codes');
    const scales = checkpoint.require(name, 'scales');
    pack(rt, marlinWeight(n, k), codes, b, { streamColumns: module.shape[1], bias, pad: 8 });
    const groups = s.shape[0]!;
    pack(rt, marlinScales(n, groups, groups === 1), scales, s);
    codes.dispose();
    scales.dispose();
    await rt.sync();
    return new Map([
      [`${name}.B`, b],
      [`${name}.s`, s],
    ]);
  },

  config: () => ({
    quantization: { quant_method: 'lpq', format: 'lpq-artifact', version: 1, target: 'marlin', manifest: 'lpq.json' },
    files: {},
  }),
};
