import { fromTyped, type NativeRuntime, readTyped, type Tensor } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { below, beside, oneAfterAnother } from './join.js';
import { common, type PackedKernel, type PackedWeight } from './kernel.js';

/** W4Ax: weights U8 [N'/16, K/128, 1024], scales f32 [K/128, N'], or [N] with `groups`; activations become codes of 4 and 8 bits by blocks of 128. */
export interface CometWeight extends PackedWeight {
  /** I8 [K/128, N'] of a two-level grid: whole multiples, -15 to 16; beyond N anything. */
  readonly groups?: Tensor;
  /** U8 and f32 [K/128]. */
  readonly bits: Tensor;
  readonly clip: Tensor;
  /** I32 [K/128]: a block's number among those of 8 bits, or ~ its number among those of 4. */
  readonly blocks: Tensor;
  /** I32 [K/128]: the same where all blocks stand in bytes. */
  readonly inBytes: Tensor;
  /** I32 [K]: column j reads channel permutation[j]. */
  readonly permutation?: Tensor;
  /** Blocks of 8 bits. */
  readonly eights: number;
}

/** With more tokens, wgmma multiplies blocks of 4 bits as bytes (docs/internals/kernels/w4ax.md). */
const FEW_TOKENS = 16;

/** I32 [count]: each block stands where it is. */
export const placesInBytes = (count: number): Int32Array => Int32Array.from({ length: count }, (_, i) => i);

/** ops.quantizeComet and ops.gemmComet. */
export const cometKernel: PackedKernel<CometWeight> = {
  name: 'comet',
  tensors: ['weights', 'scales', 'groups', 'bits', 'clip', 'blocks', 'inBytes', 'permutation'],
  wide: true,
  readsCodes: true,

  bind(binding) {
    const { module, has, load, codes } = binding;
    if (!codes) return undefined;
    return {
      kernel: cometKernel,
      ...common(binding),
      weights: load('packed'),
      scales: load(has('group_scales') ? 'channel_scales' : 'scales'),
      ...(has('group_scales') && { groups: load('group_scales') }),
      bits: load('bits'),
      clip: load('clip'),
      blocks: load('blocks'),
      inBytes: fromTyped('i32', [module.activations!.bits.length], placesInBytes(module.activations!.bits.length)),
      ...(has('permutation') && { permutation: load('permutation') }),
      eights: module.activations!.bits.filter((bits) => bits === 8).length,
    };
  },

  /** x f32, f16 or bf16 becomes codes. Throws LPQ_NATIVE_NUMERICS, late, for NaN and infinity in x. */
  multiply(rt, x, packed, bias, y) {
    const [rows, k] = x.shape as [number, number];
    const count = k / 128;
    const wide = rt.device !== 'cpu' && rows > FEW_TOKENS;
    const blocks = wide ? packed.inBytes : packed.blocks;
    const eights = wide ? count : packed.eights;
    const made: Tensor[] = [];
    const keep = (tensor: Tensor): Tensor => {
      made.push(tensor);
      return tensor;
    };
    try {
      let read = x;
      if (rt.device === 'cpu' && x.dtype !== 'f32') {
        read = keep(rt.allocate('f32', x.shape));
        ops.cast(rt, x, read);
      }
      const codes = {
        x8: keep(rt.allocate('i8', [rows, 128 * eights])),
        x4: keep(rt.allocate('u8', [rows, 64 * (count - eights)])),
        scales: keep(rt.allocate('f32', [count, Math.ceil(rows / 4) * 4])),
      };
      const { bits, clip, permutation } = packed;
      ops.quantizeComet(rt, read, { bits, clip, blocks, ...(permutation && { order: permutation }) }, codes);
      const { weights, scales, groups } = packed;
      const w = { codes: weights, scales, ...(groups && { groups }) };
      ops.gemmComet(rt, { ...codes, blocks }, w, bias, y);
    } finally {
      for (const tensor of made) tensor.dispose();
    }
  },

  joining: {
    tile: 16,
    rows: ({ weights }) => 16 * weights.shape[0]!,
    readAlike,
    join(rt, parts, shape) {
      const { bits, clip, blocks, inBytes, permutation } = parts[0]!;
      const scales = parts.map((part) => part.scales);
      return {
        ...parts[0]!,
        shape,
        weights: below(
          rt,
          parts.map(({ weights }) => weights),
        ),
        scales: parts[0]!.groups ? oneAfterAnother(rt, scales, [shape[0]]) : beside(rt, scales),
        ...(parts[0]!.groups && {
          groups: beside(
            rt,
            parts.map(({ groups }) => groups!),
          ),
        }),
        bits: bits.view(bits.shape),
        clip: clip.view(clip.shape),
        blocks: blocks.view(blocks.shape),
        inBytes: inBytes.view(inBytes.shape),
        ...(permutation && { permutation: permutation.view(permutation.shape) }),
      };
    },
  },
};

/** In one order, with the same blocks, and scales of as many levels. */
async function readAlike(rt: NativeRuntime, parts: readonly CometWeight[]): Promise<boolean> {
  if (new Set(parts.map(({ groups }) => groups === undefined)).size > 1) return false;
  for (const field of ['bits', 'clip', 'blocks', 'permutation'] as const) {
    const texts = new Set<string>();
    for (const { [field]: tensor } of parts) texts.add(tensor ? String(await readTyped<Int32Array>(rt, tensor)) : '');
    if (texts.size > 1) return false;
  }
  return true;
}
