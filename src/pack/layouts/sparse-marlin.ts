import type { CanonicalModule } from '../../../formats/canonical/schema.js';
import { allocate, type Tensor, typed } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { LpqError } from '../../core/error.js';
import { groupCount } from '../../core/granularity.js';
import { pack } from '../../layout/engine.js';
import { type MemoryLayout, memoryLayout } from '../../layout/memory.js';
import { hasForm, type IntegerForm, integerForm, type NoForm, noForm } from '../integer-form.js';
import { allocateFit, type Fit, type Operands, type PackLayout, paddingNote, roundUp } from '../layout.js';
import type { ModuleFacts } from '../target.js';

const STEP_K = 128;
/** Of the reference kernel with more than 16 tokens; fewer make do with 128. */
const STEP_N = 256;
const GROUP = 128;
/** Metadata of four times (2, 3): fours without weights. */
const NO_WEIGHTS = 0xeeee;

const form = (module: CanonicalModule, facts: ModuleFacts) => integerForm(module, facts, { sparse: true });

/**
 * Sparse-MARLIN: MODULE.B I32 [K/32, N * bits / 2] of the kept codes, unsigned; MODULE.meta I16 [K/32, 2N], where they stood;
 * MODULE.s F16 [G, N], or [1, N] per channel (MARLIN, section 4; mma.sp of the PTX ISA). Zero point 2^(bits-1) only: the kernel
 * has no others, and what the hardware leaves out counts as 0. K and N are padded to multiples of 128 and 256 with that code,
 * metadata (2, 3) and, along N, scale +0: the padding decodes to exactly 0.
 */
export const sparseMarlinLayout: PackLayout = {
  name: 'sparse_marlin',

  fit(_name, module, facts): Fit | NoForm {
    if (module.sparsity !== '2:4')
      return noForm('it is not 2:4 sparse', 'Quantize it with --sparsity 2:4, or pack it for another target.');
    const integer = form(module, facts);
    if (!hasForm(integer)) return integer;
    const { bits, symmetric } = integer;
    if (bits !== 4 && bits !== 8)
      return noForm(`it has ${bits}-bit codes, and Sparse-MARLIN takes 4 or 8 bits`, 'Quantize it with --bits 4.');
    if (!symmetric) return noForm('it has zero points, and Sparse-MARLIN has none', 'Quantize it with --sym.');
    if (module.scales.dtype !== 'f16')
      return noForm(
        `its scales are ${module.scales.dtype}, and Sparse-MARLIN reads f16`,
        'Quantize it with f16 scales.',
      );
    const { granularity } = module;
    if (granularity.kind === 'group' && granularity.size !== GROUP)
      return noForm(
        `its groups have ${granularity.size} weights, and Sparse-MARLIN reads groups of ${GROUP} or whole rows`,
        'Quantize it with --group-size 128 or channel.',
      );
    if (module.groupIndex)
      return noForm('its groups follow g_idx', 'Quantize it with --order static, which keeps groups in place.');
    const [n, k] = module.shape;
    const padded = [roundUp(n, STEP_N), roundUp(k, STEP_K)] as const;
    const groups = groupCount(granularity, granularity.kind === 'channel' ? k : padded[1]);
    const notes = paddingNote(module.shape, padded, `code ${2 ** (bits - 1)} and scale 0, which decode to 0`);
    if (groups === 1 && granularity.kind === 'group')
      notes.push(`Its one group of ${k} spans the row, so the scales are in the order of per-channel ones.`);
    return {
      padded,
      tensors: [
        { suffix: 'B', dtype: 'I32', shape: [padded[1] / 32, (padded[0] * bits) / 2] },
        { suffix: 'meta', dtype: 'I16', shape: [padded[1] / 32, 2 * padded[0]] },
        { suffix: 's', dtype: 'F16', shape: [groups, padded[0]] },
      ],
      notes,
    };
  },

  async pack(operands: Operands, fit: Fit): Promise<Map<string, Tensor>> {
    const { rt, name, module, codes, scales, mask } = operands;
    const { bits, bias } = form(module, {}) as IntegerForm;
    const [n, k] = fit.padded;
    const [rows, columns] = module.shape;
    const out = allocateFit(fit);
    const middle = 2 ** (bits - 1);
    const kept = allocate('u8', [rows, columns / 2]);
    const metadata = allocate('u16', [rows, Math.ceil(columns / 16)]);
    const info = allocate('i64', [5]);
    ops.sparseCompress(
      rt,
      { codes, mask: mask! },
      { kept, metadata, info },
      { bits, zero: (middle - bias) % 2 ** bits },
    );
    pack(rt, sparseMarlinWeight(n, k, bits as 4 | 8), kept, out.get('B')!, { bias, pad: middle });
    pack(rt, sparseMarlinMetadata(n, k), metadata, out.get('meta')!, { pad: NO_WEIGHTS });
    pack(rt, sparseMarlinScales(n, out.get('s')!.shape[0]!), scales, out.get('s')!);
    await rt.sync();
    const [count, row, column, left, code] = [...typed<BigInt64Array>(info)].map(Number);
    for (const tensor of [kept, metadata, info]) tensor.dispose();
    if (count === 0) return out;
    for (const tensor of out.values()) tensor.dispose();
    throw new LpqError('LPQ_PACK', `the weight of ${name} is not stored in 2:4 form`, {
      got:
        `row ${row}, input features ${column} to ${column! + 3}: ` +
        (code === -1 ? `${left} weights stay` : `a pruned weight has code ${code}`) +
        ` (${count} such fours)`,
      expected: `two weights of every four, and code ${(middle - bias) % 2 ** bits} for the others`,
      hint: 'Quantize it with lpq quantize --sparsity 2:4.',
    });
  },
};

/**
 * The layouts of Sparse-MARLIN as strides in bits. The weight is operand A of mma.sp.m16n8k32, 16 output features by 32
 * input features of which 16 are stored; a warp holds 64 output features as four such products, feature 8c + 4b + j of them
 * being row c + 8b of product j.
 */

/**
 * `B` I32 [K/32, N * bits / 2] of unsigned codes, from the kept codes [N, K/2]. Compressed column 16t + r and feature
 * 64s + 8c + 4b + j (b of 2, j of 4) lie in strip s of step t, with lane 4c + (r % 8) / 2; of 4 bits in word j of the lane at
 * nibble 4 (r % 2) + 2b + r / 8, of 8 bits in word 2j + b at byte 2 (r % 2) + r / 8. K % 32 == 0, N % 64 == 0.
 */
export function sparseMarlinWeight(n: number, k: number, bits: 4 | 8 = 4): MemoryLayout {
  const lane = bits * 32;
  const [below, product, later, right] = bits === 4 ? [8, 32, 4, 16] : [32, 64, 8, 16];
  return memoryLayout({
    bits,
    rows: [
      { size: n / 64, stride: 32 * lane },
      { size: 8, stride: 4 * lane },
      { size: 2, stride: below },
      { size: 4, stride: product },
    ],
    columns: [
      { size: k / 32, stride: (n / 2) * lane },
      { size: 2, stride: later },
      { size: 4, stride: lane },
      { size: 2, stride: right },
    ],
    bytes: (n * k * bits) / 16,
  });
}

/**
 * `meta` I16 [K/32, 2N] from words [N, K/16], each of 16 input features. A thread's register of mma.sp holds row c in its low
 * half and row c + 8 in its high one; threads 4c + 2s + h give the first (h = 0) and last 16 features of rows c and c + 8 to
 * the product whose sparsity selector is s. Products 0 and 1 read one register with the selectors 0 and 1, and 2 and 3 another.
 */
export function sparseMarlinMetadata(n: number, k: number): MemoryLayout {
  const half = 16;
  return memoryLayout({
    bits: half,
    rows: [
      { size: n / 64, stride: 128 * half },
      { size: 8, stride: 8 * half },
      { size: 2, stride: half },
      { size: 2, stride: 64 * half },
      { size: 2, stride: 4 * half },
    ],
    columns: [
      { size: k / 32, stride: 2 * n * half },
      { size: 2, stride: 2 * half },
    ],
    bytes: (n * k) / 8,
  });
}

/**
 * `s` F16 [G, N] from scales [N, G]: of each eight features position p holds p / 2 + 4 (p % 2), rows c and c + 8 of a product
 * beside each other. Per channel (G = 1) in place: they meet the accumulators.
 */
export function sparseMarlinScales(n: number, groups: number): MemoryLayout {
  const rows =
    groups === 1
      ? [{ size: n, stride: 16 }]
      : [
          { size: n / 8, stride: 8 * 16 },
          { size: 2, stride: 16 },
          { size: 4, stride: 2 * 16 },
        ];
  return memoryLayout({ bits: 16, rows, columns: [{ size: groups, stride: n * 16 }], bytes: n * groups * 2 });
}
