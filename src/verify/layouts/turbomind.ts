import { quantType } from '../../core/quant-type.js';
import { turbomindKernel } from '../../model/kernels/turbomind.js';
import { tileLayout } from '../decode-tiles.js';
import type { ProgramOf } from '../emulate-lanes.js';
import type { KernelRules } from '../layout.js';
import {
  integerProblems,
  orderProblems,
  partGroups,
  type TileRules,
  type TileScales,
  tileCodes,
} from '../tile-rules.js';

/** Integers with scale and zero point fused, and floats. Experts are stored along K first, but for sm70. */
function turbomindRules(name: string, form: TileRules['form'], emulator: ProgramOf, kernel?: KernelRules): TileRules {
  const rules: TileRules = {
    ...{ name, form, steps: [64, 32], codes: 'packed', unsigned: true, rows: false },

    scales(module): TileScales {
      const { dtype } = module.scales;
      const groups = partGroups(module);
      const same = { form: name, groups, padded: groups };
      if (quantType(module.type).kind === 'int') return { name: 'scales_zeros', dtype: 'F16', ...same, fused: true };
      return { name: 'scales', dtype: dtype === 'f8_e8m0' ? 'U8' : dtype === 'f16' ? 'F16' : 'BF16', ...same };
    },

    tensors(module) {
      const [np, kp] = module.padded;
      const scales = rules.scales(module);
      return [
        { suffix: 'packed', dtypes: ['I32'], shape: [(np * kp * quantType(module.type).bits) / 32] },
        { suffix: scales.name, dtypes: [scales.dtype], shape: [scales.groups, np, ...(scales.fused ? [2] : [])] },
      ];
    },

    *problems(module) {
      const type = quantType(module.type);
      if (type.kind === 'int') yield* integerProblems(rules, module);
      else {
        if (type.name !== 'f4e2m1' && type.name !== 'f8e4m3') yield `layout ${name} has no ${type.name} codes`;
        const dtypes = type.bits === 4 ? ['f8_e8m0'] : ['f16', 'bf16'];
        if (!dtypes.includes(module.scales.dtype))
          yield `layout ${name} has ${dtypes.join(' or ')} scales for ${type.name}`;
        if (tileCodes(rules, module).zero !== 0) yield 'floats have no zero points';
      }
      yield* orderProblems(rules, module);
    },

    emulator,
    ...(kernel && { kernel }),
  };
  return rules;
}

const isExpert = (name: string): boolean => /(^|\.)experts\.\d+\./.test(name);

/** sm75 to sm90. */
export const turbomind = tileLayout(
  turbomindRules(
    'turbomind',
    (name, { type }) =>
      quantType(type).kind === 'float' ? 'turbomind_a' : isExpert(name) ? 'turbomind_b_experts' : 'turbomind_b',
    ({ type }, name) =>
      quantType(type).kind === 'float'
        ? { program: 'turbomind_a' }
        : { program: 'turbomind_b', experts: isExpert(name) },
    { binds: turbomindKernel, rounds: true, fused: true },
  ),
);

/** lpq has no kernel for sm70. */
export const turbomindSm70 = tileLayout(
  turbomindRules(
    'turbomind_sm70',
    () => 'turbomind_sm70',
    () => ({ program: 'turbomind_sm70' }),
  ),
);
