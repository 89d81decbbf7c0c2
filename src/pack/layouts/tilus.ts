import type { CanonicalModule } from '../../../formats/canonical/schema.js';
import { fromTyped, type Tensor, typed } from '../../../native/binding.js';
import { LpqError } from '../../core/error.js';
import { groupCount } from '../../core/granularity.js';
import { quantType } from '../../core/quant-type.js';
import { allPacked, pack } from '../../layout/engine.js';
import { reinterpretedTile } from '../../layout/fragment.js';
import type { Layout } from '../../layout/layout.js';
import { columnSpatial, local } from '../../layout/make.js';
import { type MemoryLayout, memoryLayout, repeatTile } from '../../layout/memory.js';
import { permute, product } from '../../layout/product.js';
import { type NoForm, noForm } from '../integer-form.js';
import { allocateFit, type Fit, type Operands, type PackLayout, paddingNote, roundUp } from '../layout.js';
import { columnOrder, reorderProblem } from '../operands.js';

/** Columns (n) and rows (k) of a block, and how many k a chunk of 32 codes a lane spans. */
export const TILUS_N = 32;
export const TILUS_K = 128;

const GROUPS: readonly number[] = [32, 64, 128];

/**
 * lpq's own layout, for every type of 1 to 8 bits (tilus.ts): MODULE.packed U8 [N/32, K/128, 512 * bits] of raw codes,
 * MODULE.scales F16 or BF16 [N/32, G, 32], MODULE.zeros of the same shape where there are zero points: U8, or F16 for
 * those that are negative or no integers; MODULE.permutation I32 [K] as in MARLIN's. Padding: codes and scales of 0; a
 * kernel feeds zeros for k >= K.
 */
export const tilusLayout: PackLayout = {
  name: 'tilus',

  fit(_name, module, facts): Fit | NoForm {
    const { bits } = quantType(module.type);
    if (module.sparsity !== 'none')
      return noForm('it is 2:4 sparse', 'Pack it with --target sparse_marlin, or quantize it without --sparsity.');
    if (module.scales.global) return noForm('its scales have a second level', 'Quantize it with scales of one level.');
    if (module.scales.block[0] !== 1)
      return noForm(
        `a scale covers ${module.scales.block[0]} output features`,
        'Quantize it with scales for each row.',
      );
    const { dtype } = module.scales;
    if (dtype !== 'f16' && dtype !== 'bf16' && dtype !== 'f8_e8m0')
      return noForm(`its scales are ${dtype}, and the kernel reads 16 bits`, 'Quantize it with f16 or bf16 scales.');
    const { granularity, zeros } = module;
    if (granularity.kind === 'group' && !GROUPS.includes(granularity.size))
      return noForm(
        `its groups have ${granularity.size} weights, and the kernel reads groups of ${GROUPS.join(', ')} or whole rows`,
        'Quantize it with --group-size 128 or channel.',
      );
    if (zeros.kind === 'float' && zeros.dtype !== 'f16')
      return noForm(
        `its zero points are ${zeros.dtype}, and the kernel reads f16`,
        'Quantize it with f16 zero points.',
      );
    const [low, high] = facts.zeroRange ?? [0, 0];
    if (zeros.kind === 'int' && (low < -2048 || high > 2048))
      return noForm(`its zero points, ${low} to ${high}, exceed the exact range of f16`, 'Quantize it anew.');
    const reordered = reorderProblem(module, facts);
    if (reordered) return reordered;
    const [n, k] = module.shape;
    const padded = [roundUp(n, TILUS_N), roundUp(k, TILUS_K)] as const;
    const scaleShape = [padded[0] / TILUS_N, groupCount(granularity, k), TILUS_N];
    const zeroDtype = zeroStorage(module);
    return {
      padded,
      tensors: [
        { suffix: 'packed', dtype: 'U8', shape: [padded[0] / TILUS_N, padded[1] / TILUS_K, 512 * bits] },
        { suffix: 'scales', dtype: dtype === 'f16' ? 'F16' : 'BF16', shape: scaleShape },
        ...(zeroDtype ? [{ suffix: 'zeros', dtype: zeroDtype, shape: scaleShape }] : []),
        ...(module.groupIndex || module.permutation
          ? [{ suffix: 'permutation', dtype: 'I32' as const, shape: [k] }]
          : []),
      ],
      notes: [
        ...paddingNote(module.shape, padded, 'codes and scales of 0'),
        ...(dtype === 'f8_e8m0' ? ['Its power-of-two scales are stored as bf16, which holds each of them.'] : []),
        ...(module.groupIndex
          ? [
              'Its input features are sorted by group (permutation); a kernel gathers the activations in the same order.',
            ]
          : []),
      ],
    };
  },

  async pack(operands: Operands, fit: Fit): Promise<Map<string, Tensor>> {
    const { rt, module, codes } = operands;
    const { bits } = quantType(module.type);
    const [n, k] = fit.padded;
    const groups = groupCount(module.granularity, module.shape[1]);
    const out = allocateFit(fit, 'permutation');
    const order = operands.groupIndex && columnOrder(operands.groupIndex);
    const options = { streamColumns: module.shape[1], ...(order && { order }) };
    pack(rt, tilusWeight(n, k, bits), codes, out.get('packed')!, options);
    const scales = module.scales.dtype === 'f8_e8m0' ? wideScales(operands) : operands.scales;
    pack(rt, tilusScales(n, groups, 16), scales, out.get('scales')!);
    if (scales !== operands.scales) scales.dispose();
    const zeros = out.get('zeros');
    if (zeros) {
      const half = zeros.dtype === 'f16' && operands.zeros!.dtype !== 'f16';
      const stored = half ? halfZeros(operands.zeros!) : operands.zeros!;
      pack(rt, tilusScales(n, groups, zeros.dtype === 'u8' ? 8 : 16), stored, zeros);
      if (stored !== operands.zeros) stored.dispose();
    }
    await allPacked(rt);
    const permutation = order ?? operands.permutation;
    if (permutation) out.set('permutation', permutation.view(permutation.shape));
    order?.dispose();
    return out;
  },

  memory: { bits: [1, 2, 3, 4, 5, 6, 7, 8], unit: [TILUS_N, TILUS_K], of: tilusWeight },
};

function zeroStorage({ zeros }: CanonicalModule): 'U8' | 'F16' | undefined {
  if (zeros.kind === 'int') return zeros.dtype === 'u8' ? 'U8' : 'F16';
  return zeros.kind === 'float' ? 'F16' : undefined;
}

/** Power-of-two scales as bf16: 2^(e - 127) has exponent field e, but for e = 0 (subnormal 2^-127). Throws LPQ_PACK. */
function wideScales({ name, scales }: Operands): Tensor {
  const bytes = scales.bytes();
  const at = bytes.indexOf(255);
  if (at >= 0)
    throw new LpqError('LPQ_PACK', `a scale of '${name}' is NaN`, {
      got: `row ${Math.floor(at / scales.shape[1]!)}, group ${at % scales.shape[1]!}`,
    });
  return fromTyped(
    'bf16',
    scales.shape,
    Uint16Array.from(bytes, (e) => (e === 0 ? 0x40 : e << 7)),
  );
}

/** Whole numbers up to 2048 in f16, exactly. */
function halfZeros(zeros: Tensor): Tensor {
  const half = (value: number): number => {
    const size = Math.abs(value);
    if (size === 0) return 0;
    const exponent = Math.floor(Math.log2(size));
    return (value < 0 ? 0x8000 : 0) | ((exponent + 15) << 10) | ((size / 2 ** exponent - 1) * 1024);
  };
  return fromTyped('f16', zeros.shape, Uint16Array.from(typed<Int16Array>(zeros), half));
}

/**
 * Who holds what of a block, [k, n] = [128, 32]: fragments of operand B of mma.m16n8k16 (operand A of its transpose), a
 * lane's 128 codes in the order k / 8, n / 8, k % 2. Its MMA atom is column_spatial(4, 8).local(2, 1).
 */
export const TILUS_TILE: Layout = product(local(16, 1), local(1, 4), columnSpatial(4, 8), local(2, 1));

/**
 * The codes of a weight, U8 [N/32, K/128, 512 * bits], any width from 1 to 8 bits: each lane's codes as a stream of bytes
 * that loads of 16 cut, local(bits).spatial(32).local(16) (Tilus, section 7.2), with the word order of `pairWords`.
 * N % 32 == 0, K % 128 == 0.
 */
export function tilusWeight(n: number, k: number, bits: number): MemoryLayout {
  const tile = reinterpretedTile(permute(TILUS_TILE, [1, 0]), bits);
  const along = k / TILUS_K;
  return memoryLayout({
    bits,
    ...repeatTile(tile, [n / TILUS_N, along], [along * tile.bits, tile.bits]),
    unit: tile.unit!,
    wordOrder: pairWords(bits),
    bytes: (n * k * bits) / 8,
  });
}

/**
 * The word order of a chunk: 32 codes, which are 16 pairs k, k + 1, in `bits` words. Both codes of a pair lie at the same
 * place of a word's two halves, so that whatever cuts one out cuts out the other, as f16x2 instructions want it. A half
 * holds 16 div bits whole fields; the pairs that are left over are spread over the bits above them, in runs as long as
 * these are.
 */
export function pairWords(bits: number): number[] {
  const order: number[] = [];
  const fields = Math.floor(16 / bits);
  const whole = Math.min(16, fields * bits);
  for (let pair = 0; pair < 16; pair++)
    for (let half = 0; half < 2; half++)
      for (let bit = 0; bit < bits; bit++) {
        const [word, at] =
          pair < whole
            ? [Math.floor(pair / fields), (pair % fields) * bits + bit]
            : spare(bits, pair - whole, bit, 16 - fields * bits);
        order.push(32 * word + 16 * half + at);
      }
  return order;
}

/**
 * Word and bit of a half for bit `bit` of the `index`-th pair that is left over. Halves have `room` bits for them, and
 * there are as many such pairs.
 */
function spare(bits: number, index: number, bit: number, room: number): [word: number, bit: number] {
  // Each pair fills its own words as far as whole runs of `room` bits go; what is left of all of them shares the last words.
  const runs = Math.floor(bits / room);
  const rest = bits - runs * room;
  if (bit < runs * room) return [index * runs + Math.floor(bit / room), 16 - room + (bit % room)];
  const at = index * rest + (bit - runs * room);
  return [room * runs + Math.floor(at / room), 16 - room + (at % room)];
}

/** Scales or zero points of 8 or 16 bits, [N/32, G, 32] from a matrix [N, G]: a lane's four columns n % 8 are neighbours. */
export function tilusScales(n: number, groups: number, bits: 8 | 16): MemoryLayout {
  return memoryLayout({
    bits,
    rows: [
      { size: n / TILUS_N, stride: groups * TILUS_N * bits },
      { size: 4, stride: bits },
      { size: 8, stride: 4 * bits },
    ],
    columns: [{ size: groups, stride: TILUS_N * bits }],
    bytes: (n * groups * bits) / 8,
  });
}
