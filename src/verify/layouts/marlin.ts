import type { PackedModule } from '../../../formats/artifact/schema.js';
import { quantType } from '../../core/quant-type.js';
import { marlinKernel } from '../../model/kernels/marlin.js';
import { tileLayout } from '../decode-tiles.js';
import { emulateGeneral } from '../emulate-tiles.js';
import { type EmulatedPart, isSymmetric } from '../layout.js';
import type { ModuleContext } from '../module.js';
import { type EmulatorResult, emulate } from '../native.js';
import { integerProblems, orderTensor, partGroups, partShape, type TileRules, tileCodes } from '../tile-rules.js';

const rules: TileRules = {
  name: 'marlin',
  steps: [256, 128],
  codes: 'B',
  unsigned: true,
  middle: true,
  rows: true,
  form: () => 'marlin',

  scales(module) {
    const { zero, bits } = tileCodes(rules, module);
    return {
      ...{ name: 's', form: 'marlin_scales', dtype: 'F16' },
      groups: partGroups(module),
      padded: partGroups(module, module.padded[1]),
      ...(zero !== 2 ** (bits - 1) && { zeros: { name: 'zp', form: 'marlin_zeros', dtype: 'I32' } }),
    };
  },

  tensors(module) {
    const [np, kp] = module.padded;
    const { bits } = quantType(module.type);
    const { padded, zeros } = rules.scales(module);
    return [
      { suffix: 'B', dtypes: ['I32'], shape: [kp / 16, (np * bits) / 2] },
      { suffix: 's', dtypes: ['F16'], shape: [padded, np] },
      ...(zeros ? [{ suffix: 'zp', dtypes: ['I32'], shape: [padded, (np * bits) / 32] }] : []),
      ...orderTensor(module),
    ];
  },

  *problems(module) {
    const type = quantType(module.type);
    if (type.kind === 'int') yield* integerProblems(rules, module);
    else yield `layout marlin holds integers, not ${type.name}`;
    const whole = module.padded[1] === partShape(module)[1];
    if (rules.scales(module).zeros && module.granularity.kind === 'channel' && !whole)
      yield 'layout marlin pads K of whole channels only if the zero point is the middle code';
  },

  emulator: {
    strip: () => 64,
    run: (ctx, part) => (isClassic(part.module) ? classic(ctx, part) : emulateGeneral(rules, ctx, part)),
  },

  kernel: { binds: marlinKernel, rounds: true },
};

export const marlin = tileLayout(rules);

/** What MARLIN's own kernel reads: emulated with its very instructions, per-channel scales after the sum. */
function isClassic(module: PackedModule): boolean {
  const { canonical, granularity, padded } = module;
  const whole = granularity.kind === 'channel' || padded[1] === partShape(module)[1];
  return quantType(module.type).bits === 4 && isSymmetric(module) && !canonical.g_idx && whole;
}

async function classic(ctx: ModuleContext, { prefix, module, parts, strips }: EmulatedPart): Promise<EmulatorResult> {
  const { kind, signed } = quantType(module.type);
  const stored = ['B', 's'].map((suffix) => ctx.weights.tensor(`${prefix}.${suffix}`));
  const result = await emulate(ctx.runtime, 'marlin', [...stored, parts.get('codes')!, parts.get('scales')!], {
    k: partShape(module)[1],
    zero: module.zeros.kind === 'const' ? module.zeros.value : 0,
    signed: kind === 'int' && signed,
    seed: ctx.seed,
    strips,
  });
  for (const tensor of stored) tensor.dispose();
  return result;
}
