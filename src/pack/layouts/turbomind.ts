import type { CanonicalModule } from '../../../formats/canonical/schema.js';
import { allocate, type Tensor, typed } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { LpqError } from '../../core/error.js';
import { groupCount } from '../../core/granularity.js';
import { quantType } from '../../core/quant-type.js';
import { allPacked, pack } from '../../layout/engine.js';
import { hardwareAwareTile, loadedTile, TENSOR_CORES } from '../../layout/hardware-aware.js';
import type { Layout } from '../../layout/layout.js';
import { type MemoryLayout, memoryLayout, repeatTile } from '../../layout/memory.js';
import { hasForm, type IntegerForm, integerForm, type NoForm, noForm } from '../integer-form.js';
import { type Fit, type PackLayout, paddingNote, roundUp } from '../layout.js';
import { offsetZeros } from '../operands.js';
import type { ModuleFacts } from '../target.js';

/** N of the smallest tile of TurboMind's GEMM; K comes in whole groups, which hold its smallest of 32. */
const STEP_N = 64;
const GROUPS: readonly number[] = [32, 64, 128];

/** What the kernel's scale operand is: half2 {s, -z s}; ue8m0 bytes; 16-bit floats. */
type Kind = 'fused' | 'e8m0' | 'plain';

function kindOf(module: CanonicalModule, facts: ModuleFacts): { kind: Kind; bits: 4 | 8; form?: IntegerForm } | NoForm {
  const type = quantType(module.type);
  const { dtype } = module.scales;
  if (type.kind === 'float') {
    if (module.zeros.kind !== 'none' && !(module.zeros.kind === 'const' && module.zeros.value === 0))
      return noForm('it has floats with zero points', 'Quantize it with --sym.');
    const plain = floatProblem(module);
    if (plain) return plain;
    if (type.name === 'f4e2m1')
      return dtype === 'f8_e8m0'
        ? { kind: 'e8m0', bits: 4 }
        : noForm(`its scales are ${dtype}, and those of fp4 are f8_e8m0 here`, 'Quantize it with --dtype mxfp4.');
    if (type.name === 'f8e4m3')
      return dtype === 'f16' || dtype === 'bf16'
        ? { kind: 'plain', bits: 8 }
        : noForm(`its scales are ${dtype}, and those of fp8 have 16 bits here`, 'Quantize it with f16 or bf16 scales.');
    return noForm(`it holds ${type.name} codes; TurboMind has f4e2m1 and f8e4m3`, 'Quantize it to one of these.');
  }
  const form = integerForm(module, facts);
  if (!hasForm(form)) return form;
  if (form.bits !== 4 && form.bits !== 8)
    return noForm(`it has ${form.bits}-bit codes, and TurboMind takes 4 or 8 bits`, 'Quantize it with --bits 4.');
  if (dtype !== 'f16')
    return noForm(`its scales are ${dtype}, and TurboMind fuses f16 scales`, 'Quantize it with f16 scales.');
  return { kind: 'fused', bits: form.bits, form };
}

function floatProblem(module: CanonicalModule): NoForm | undefined {
  if (module.sparsity !== 'none')
    return noForm('it is 2:4 sparse', 'Pack it with --target sparse_marlin, or quantize it without --sparsity.');
  if (module.permutation) return noForm('its columns are permuted', 'Quantize it with --order static.');
  if (module.scales.global) return noForm('its scales have a second level', 'Quantize it with scales of one level.');
  if (module.scales.block[0] !== 1)
    return noForm(`a scale covers ${module.scales.block[0]} output features`, 'Quantize it with scales for each row.');
  return undefined;
}

/** Experts of a mixture are stored along k first, so that each can be found by its number. */
const isExpert = (name: string): boolean => /(^|\.)experts\.\d+\./.test(name);

/**
 * TurboMind (its section 4), sm75 to sm90, or sm70, which lpq has no kernel for. MODULE.packed I32; scales and zero points in
 * one load, MODULE.scales_zeros F16 [G, N, 2] = {s, -z s} rounded once, for integers; MODULE.scales U8 or 16-bit [G, N] for
 * floats. N is padded to a multiple of 64 with codes and scales of 0.
 */
function fragments(sm70: boolean): PackLayout {
  return {
    name: sm70 ? 'turbomind_sm70' : 'turbomind',

    fit(name, module, facts): Fit | NoForm {
      const found = kindOf(module, facts);
      if (!('kind' in found)) return found;
      if (module.groupIndex)
        return {
          reason: 'its columns are in activation order, which TurboMind does not support',
          remedy: 'Quantize it with --order static, which keeps them in place.',
        };
      const [n, k] = module.shape;
      if (module.granularity.kind !== 'group' || !GROUPS.includes(module.granularity.size))
        return {
          reason: `its scales cover ${module.granularity.kind === 'group' ? module.granularity.size : 'all'} input features and TurboMind reads groups of ${GROUPS.join(', ')}`,
          remedy: 'Quantize it with --group-size 128.',
        };
      const padded = [roundUp(n, STEP_N), k] as const;
      const groups = groupCount(module.granularity, k);
      const { kind, bits } = found;
      const experts = kind === 'fused' && !sm70 && isExpert(name);
      return {
        padded,
        tensors: [
          { suffix: 'packed', dtype: 'I32', shape: [(padded[0] * k * bits) / 32] },
          kind === 'fused'
            ? { suffix: 'scales_zeros', dtype: 'F16', shape: [groups, padded[0], 2] }
            : kind === 'e8m0'
              ? { suffix: 'scales', dtype: 'U8', shape: [groups, padded[0]] }
              : { suffix: 'scales', dtype: module.scales.dtype === 'f16' ? 'F16' : 'BF16', shape: [groups, padded[0]] },
        ],
        notes: [
          ...paddingNote(module.shape, padded, 'codes and scales of 0'),
          ...(experts ? ['An expert: its tiles run along k first.'] : []),
        ],
      };
    },

    async pack(operands, fit): Promise<Map<string, Tensor>> {
      const { rt, name, module, codes, scales } = operands;
      const found = kindOf(module, { zeroRange: [0, 0] });
      if (!('kind' in found)) throw new LpqError('LPQ_INTERNAL', `'${name}' was planned for ${this.name}`);
      const { kind, bits, form } = found;
      const [n, k] = fit.padded;
      const [, second] = fit.tensors;
      const groups = second!.shape[0]!;
      const packed = allocate('i32', fit.tensors[0]!.shape);
      const shape = sm70 ? 'sm70' : kind === 'fused' ? 'b' : 'a';
      const order = shape === 'b' && isExpert(name) ? 'n-major' : 'k-major';
      pack(rt, turbomindWeight(n, k, bits, shape, order), codes, packed, {
        streamColumns: module.shape[1],
        bias: form?.bias ?? 0,
      });
      const out = new Map([['packed', packed]]);
      if (kind !== 'fused') {
        const dtype = { U8: 'u8', F16: 'f16', BF16: 'bf16' }[second!.dtype as 'U8' | 'F16' | 'BF16'];
        const target = allocate(dtype as 'u8' | 'f16' | 'bf16', second!.shape);
        pack(rt, turbomindScales(n, groups, kind === 'e8m0' ? 8 : 16, sm70), scales, target);
        out.set('scales', target);
        await allPacked(rt);
        return out;
      }
      const zeros = offsetZeros(operands, form!);
      const pairs = allocate('i32', scales.shape);
      const info = allocate('i64', [4]);
      ops.fuseScaleZero(rt, scales, zeros, pairs, info, { constant: form!.zero !== 'tensor' });
      const target = allocate('f16', second!.shape);
      pack(rt, turbomindScales(n, groups, 32, sm70), pairs, target.view(target.shape));
      await allPacked(rt);
      const [lost, row, group, what] = [...typed<BigInt64Array>(info)].map(Number);
      for (const tensor of [zeros, pairs, info]) tensor.dispose();
      if (lost! > 0)
        throw new LpqError(
          'LPQ_PACK',
          what === 0
            ? `the scale of row ${row}, group ${group} of '${name}' is 0, so its zero point is lost in {s, -z s}`
            : `a scale times its zero point is beyond f16 in row ${row}, group ${group} of '${name}'`,
          { got: `${lost} such groups`, hint: 'Quantize it with --sym, or pack it for tilus or marlin.' },
        );
      out.set('scales_zeros', target);
      return out;
    },

    ...(!sm70 && {
      memory: { bits: [4, 8], unit: [32, 32], of: (n, k, bits) => turbomindWeight(n, k, bits as 4 | 8, 'b') },
    }),
  };
}

export const turbomindLayout = fragments(false);
export const turbomindSm70Layout = fragments(true);

/**
 * The ways TurboMind stores a weight (TurboMind, section 4: extend to 16 bits, load fragments as the GEMM would, compress,
 * store). b: as operand B of mma.m16n8k16, two 16x16 fragments a store (u4, u8); a: as operand A, one a store (fp4, fp8);
 * sm70: as operand B of mma.m8n8k4, eight k of a column in a word.
 */
export type TurboMindForm = 'b' | 'a' | 'sm70';

/** What is loaded for each: the operand, and how many fragments go into a store. */
const LOADS = {
  b: [TENSOR_CORES[80], 'b', 2],
  a: [TENSOR_CORES[80], 'a', 1],
  sm70: [TENSOR_CORES[70], 'b', 1],
} as const;

/** Two 16x16 tiles side by side along n, operand B; [n, k] = [32, 16]. */
export const TURBOMIND_B: Layout = loadedTile(...LOADS.b);

/**
 * The codes of a module, I32 [N * K * bits / 32] in all. Tiles follow one another along n and then along k ('k-major'), or
 * along k first for the experts of a mixture in form b and sm70 ('n-major'). N and K are multiples of the tile's.
 */
export function turbomindWeight(
  n: number,
  k: number,
  bits: 4 | 8,
  form: TurboMindForm,
  order: 'k-major' | 'n-major' = 'k-major',
): MemoryLayout {
  const [core, operand, fragments] = LOADS[form];
  const [rows, columns] = loadedTile(core, operand, fragments).shape as [number, number];
  const stored = hardwareAwareTile(core, operand, fragments, bits);
  const [down, across] = [n / rows, k / columns];
  // sm70 counts k inside n always.
  const inner = order === 'n-major' || form === 'sm70';
  return memoryLayout({
    bits,
    ...repeatTile(
      stored,
      [down, across],
      inner ? [across * stored.bits, stored.bits] : [stored.bits, down * stored.bits],
    ),
    bytes: (n * k * bits) / 8,
  });
}

/**
 * Elements of 8, 16 or 32 bits, one for a column and group, from a matrix [N, G]. sm75 and later: per 16 columns the pair
 * n, n + 8 that a lane needs is one load; sm70: [G, N].
 */
export function turbomindScales(n: number, groups: number, bits: 8 | 16 | 32, sm70: boolean): MemoryLayout {
  const rows = sm70
    ? [{ size: n, stride: bits }]
    : [
        { size: n / 16, stride: 16 * bits },
        { size: 2, stride: bits },
        { size: 8, stride: 2 * bits },
      ];
  return memoryLayout({ bits, rows, columns: [{ size: groups, stride: n * bits }], bytes: (n * groups * bits) / 8 });
}
