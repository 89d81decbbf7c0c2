import type { CanonicalModule } from '../../../formats/canonical/schema.js';
import { allocate, fromTyped, type Tensor, typed } from '../../../native/binding.js';
import { LpqError } from '../../core/error.js';
import { groupCount } from '../../core/granularity.js';
import { quantType } from '../../core/quant-type.js';
import { allPacked, pack } from '../../layout/engine.js';
import type { NoForm } from '../integer-form.js';
import { columnOrder } from '../operands.js';
import { type Operands, paddingNote, roundUp, type TileFit, type TileLayout } from '../tile-layout.js';
import { reorderProblem } from './marlin-layout.js';
import { TILUS_K, TILUS_N, tilusScales, tilusWeight } from './tilus.js';

const GROUPS: readonly number[] = [32, 64, 128];

/**
 * lpq's own layout, for every type of 1 to 8 bits (tilus.ts): MODULE.packed U8 [N/32, K/128, 512 * bits] of raw codes,
 * MODULE.scales F16 or BF16 [N/32, G, 32], MODULE.zeros of the same shape where there are zero points: U8, or F16 for
 * those that are negative or no integers; MODULE.permutation I32 [K] as in MARLIN's. Padding: codes and scales of 0; a
 * kernel feeds zeros for k >= K.
 */
export const tilusLayout: TileLayout = {
  name: 'tilus',

  fit(_name, module, facts): TileFit | NoForm {
    const no = (reason: string, remedy: string): NoForm => ({ reason, remedy });
    const { bits } = quantType(module.type);
    if (module.sparsity !== 'none')
      return no('it is 2:4 sparse', 'Pack it with --target sparse_marlin, or quantize it without --sparsity.');
    if (module.scales.global) return no('its scales have a second level', 'Quantize it with scales of one level.');
    if (module.scales.block[0] !== 1)
      return no(`a scale covers ${module.scales.block[0]} output features`, 'Quantize it with scales for each row.');
    const { dtype } = module.scales;
    if (dtype !== 'f16' && dtype !== 'bf16' && dtype !== 'f8_e8m0')
      return no(`its scales are ${dtype} and the kernel reads 16 bits`, 'Quantize it with f16 or bf16 scales.');
    const { granularity, zeros } = module;
    if (granularity.kind === 'group' && !GROUPS.includes(granularity.size))
      return no(
        `its groups are ${granularity.size} long and the kernel reads groups of ${GROUPS.join(', ')} or whole rows`,
        'Quantize it with --group-size 128 or channel.',
      );
    if (zeros.kind === 'float' && zeros.dtype !== 'f16')
      return no(`its zero points are ${zeros.dtype} and the kernel reads f16`, 'Quantize it with f16 zero points.');
    const [low, high] = facts.zeroRange ?? [0, 0];
    if (zeros.kind === 'int' && (low < -2048 || high > 2048))
      return no(`its zero points run from ${low} to ${high}, beyond what f16 holds exactly`, 'Quantize it anew.');
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
          ? ['Its input features are sorted by group (permutation); a kernel gathers the activations alike.']
          : []),
      ],
    };
  },

  async pack(operands: Operands, fit: TileFit): Promise<Map<string, Tensor>> {
    const { rt, module, codes } = operands;
    const { bits } = quantType(module.type);
    const [n, k] = fit.padded;
    const groups = groupCount(module.granularity, module.shape[1]);
    const out = new Map<string, Tensor>();
    const DTYPES = { U8: 'u8', F16: 'f16', BF16: 'bf16' } as const;
    for (const { suffix, dtype, shape } of fit.tensors)
      if (suffix !== 'permutation') out.set(suffix, allocate(DTYPES[dtype as keyof typeof DTYPES], shape));
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
