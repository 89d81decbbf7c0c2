import type { Activations } from '../../../formats/canonical/schema.js';
import { allocate, fromTyped, type Tensor } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { allPacked, pack } from '../../layout/engine.js';
import { MMA_M16N8K32, reinterpretedTile, reorderLocals } from '../../layout/fragment.js';
import { type Layout, layout } from '../../layout/layout.js';
import { local } from '../../layout/make.js';
import { type MemoryLayout, memoryLayout, repeatTile } from '../../layout/memory.js';
import { permute, product } from '../../layout/product.js';
import { type NoForm, noForm } from '../integer-form.js';
import { type Fit, type Operands, type PackLayout, paddingNote, roundUp } from '../layout.js';

/** Output features (n) and input features (k) of a block. */
export const COMET_N = 16;
export const COMET_K = 128;

const SCALES: readonly string[] = ['f16', 'bf16', 'f32'];

/**
 * W4Ax (COMET, section 4.3; comet.ts): MODULE.packed U8 [N/16, K/128, 1024] of 4-bit two's complement codes, MODULE.scales F32
 * [K/128, N]; and what the kernels ask to know of the activations: MODULE.bits U8 and MODULE.clip F32 [K/128], MODULE.blocks I32
 * [K/128] (a block's number among those of 8 bits, or ~ its number among those of 4), and MODULE.permutation I32 [K] where an
 * order of channels could not be folded: column j reads channel permutation[j]. N is padded with codes and scales of 0.
 */
export const cometLayout: PackLayout = {
  name: 'comet',

  fit(_name, module, facts): Fit | NoForm {
    const { activations } = module;
    // What reads codes has symmetric integers in groups of 128, in place (formats/canonical/tensors.ts).
    if (!activations)
      return noForm(
        'its activations are not quantized, and COMET needs low-bit activations',
        'Quantize it with --method fmpq, or pack it for another target.',
      );
    if (module.type !== 'i4')
      return noForm(`it holds ${module.type} codes, and COMET takes i4`, 'Quantize it with --method fmpq --bits 4.');
    if (module.sparsity !== 'none') return noForm('it is 2:4 sparse', 'Quantize it without --sparsity.');
    if (!SCALES.includes(module.scales.dtype))
      return noForm(
        `its scales are ${module.scales.dtype}, and COMET's are floats`,
        'Quantize it with f16, bf16 or f32 scales.',
      );
    const [n, k] = module.shape;
    const blocks = k / COMET_K;
    const padded = [roundUp(n, COMET_N), k] as const;
    const { bits } = activations;
    const eights = bits.filter((each) => each === 8).length;
    // Ranks that share input features have blocks of their own.
    const whole = !(facts.ranks && 'split' in facts.ranks && facts.ranks.split === 'k');
    return {
      padded,
      tensors: [
        { suffix: 'packed', dtype: 'U8', shape: [padded[0] / COMET_N, blocks, 1024] },
        { suffix: 'scales', dtype: 'F32', shape: [blocks, padded[0]] },
        { suffix: 'bits', dtype: 'U8', shape: [blocks] },
        { suffix: 'clip', dtype: 'F32', shape: [blocks] },
        { suffix: 'blocks', dtype: 'I32', shape: [blocks] },
        ...(module.permutation ? [{ suffix: 'permutation', dtype: 'I32' as const, shape: [k] }] : []),
      ],
      notes: [
        ...paddingNote(module.shape, padded, 'codes and scales of 0'),
        ...(whole
          ? [
              `Of ${bits.length} blocks of 128 input features ${bits.length - eights} have activations of 4 bits, ${eights} of 8.`,
            ]
          : []),
        ...(module.permutation ? ['Its input features are gathered (permutation) when they are quantized.'] : []),
      ],
    };
  },

  async pack(operands: Operands, fit: Fit): Promise<Map<string, Tensor>> {
    const { rt, module, codes, permutation } = operands;
    const [n, k] = fit.padded;
    const groups = k / COMET_K;
    const out = new Map<string, Tensor>([
      ['packed', allocate('u8', fit.tensors[0]!.shape)],
      ['scales', allocate('f32', fit.tensors[1]!.shape)],
      ...activationTensors(module.activations!),
    ]);
    pack(rt, cometWeight(n, k), codes, out.get('packed')!, { streamColumns: k });
    const wide = allocate('f32', operands.scales.shape);
    ops.cast(rt, operands.scales, wide);
    pack(rt, cometScales(n, groups), wide, out.get('scales')!);
    await allPacked(rt);
    wide.dispose();
    if (permutation) out.set('permutation', permutation.view(permutation.shape));
    return out;
  },

  memory: { bits: [4], unit: [COMET_N, COMET_K], of: cometWeight },
};

/** bits U8, clip F32 and blocks I32, [K/128] each. */
export function activationTensors({ bits, clip }: Activations): [string, Tensor][] {
  const count = { 4: 0, 8: 0 };
  const blocks = Int32Array.from(bits, (each) => (each === 8 ? count[8]++ : ~count[4]++));
  const shape = [bits.length];
  return [
    ['bits', fromTyped('u8', shape, Uint8Array.from(bits))],
    ['clip', fromTyped('f32', shape, Float32Array.from(clip))],
    ['blocks', fromTyped('i32', shape, blocks)],
  ];
}

/**
 * Who holds what of a block, [k, n] = [128, 16]: fragments of operand B of mma.m16n8k32 (the registers of operand A of wgmma
 * m64nNk32 are the same), four along k and two along n. Registers b0 and b1 hold k % 16 / 4 = lane % 4 of a chunk's first and last 16 k:
 * the "0-3 and 8-11" of COMET's weight interleave (section 4.3), here 0-3 and 16-19. The two are nibbles of one byte, which is its
 * location switch: `w << 4` and `w`, masked with 0xf0, are the two registers, each code times 16.
 */
export const COMET_TILE: Layout = reorderLocals(
  product(local(4, 1), local(1, 2), MMA_M16N8K32.b),
  layout([8], [2, 4], [], [1, 0]),
);

/**
 * The 4-bit codes of a weight, U8 [N/16, K/128, 1024]: lane by lane, a lane's 64 codes in two loads of 16 bytes, of which each
 * holds two chunks of 32 k. N % 16 == 0, K % 128 == 0.
 *   (lane, chunk, eight, i) -> n = 8 eight + lane / 4, k = 32 chunk + 4 (lane % 4) + i (low nibble), that + 16 (high nibble)
 */
export function cometWeight(n: number, k: number): MemoryLayout {
  const tile = reinterpretedTile(permute(COMET_TILE, [1, 0]), 4);
  const along = k / COMET_K;
  return memoryLayout({
    bits: 4,
    ...repeatTile(tile, [n / COMET_N, along], [along * tile.bits, tile.bits]),
    unit: tile.unit!,
    bytes: (n * k) / 2,
  });
}

/** Scales F32 [K/128, N] from a matrix [N, K/128]. */
export function cometScales(n: number, groups: number): MemoryLayout {
  const rows = [{ size: n, stride: 32 }];
  return memoryLayout({ bits: 32, rows, columns: [{ size: groups, stride: n * 32 }], bytes: n * groups * 4 });
}
