import type { Activations } from '../../../formats/canonical/schema.js';
import { allocate, fromTyped, type Tensor } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { allPacked, pack } from '../../layout/engine.js';
import type { NoForm } from '../integer-form.js';
import { type Operands, paddingNote, roundUp, type TileFit, type TileLayout } from '../tile-layout.js';
import { COMET_K, COMET_N, cometScales, cometWeight } from './comet.js';

const SCALES: readonly string[] = ['f16', 'bf16', 'f32'];

/**
 * W4Ax (COMET, section 4.3; comet.ts): MODULE.packed U8 [N/16, K/128, 1024] of 4-bit two's complement codes, MODULE.scales F32
 * [K/128, N]; and what the kernels ask to know of the activations: MODULE.bits U8 and MODULE.clip F32 [K/128], MODULE.blocks I32
 * [K/128] (a block's number among those of 8 bits, or ~ its number among those of 4), and MODULE.permutation I32 [K] where an
 * order of channels could not be folded: column j reads channel permutation[j]. N is padded with codes and scales of 0.
 */
export const cometLayout: TileLayout = {
  name: 'comet',

  fit(_name, module, facts): TileFit | NoForm {
    const no = (reason: string, remedy: string): NoForm => ({ reason, remedy });
    const { activations } = module;
    // What reads codes has symmetric integers in groups of 128, in place (formats/canonical/tensors.ts).
    if (!activations)
      return no(
        'its activations are not quantized and COMET multiplies codes with codes',
        'Quantize it with --method fmpq, or pack it for another target.',
      );
    if (module.type !== 'i4')
      return no(`it holds ${module.type} codes and COMET i4`, 'Quantize it with --method fmpq --bits 4.');
    if (module.sparsity !== 'none') return no('it is 2:4 sparse', 'Quantize it without --sparsity.');
    if (!SCALES.includes(module.scales.dtype))
      return no(
        `its scales are ${module.scales.dtype} and COMET's floats`,
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

  async pack(operands: Operands, fit: TileFit): Promise<Map<string, Tensor>> {
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
};

/** bits U8, clip F32 and blocks I32, [K/128] each. */
function activationTensors({ bits, clip }: Activations): [string, Tensor][] {
  const count = { 4: 0, 8: 0 };
  const blocks = Int32Array.from(bits, (each) => (each === 8 ? count[8]++ : ~count[4]++));
  const shape = [bits.length];
  return [
    ['bits', fromTyped('u8', shape, Uint8Array.from(bits))],
    ['clip', fromTyped('f32', shape, Float32Array.from(clip))],
    ['blocks', fromTyped('i32', shape, blocks)],
  ];
}
