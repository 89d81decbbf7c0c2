import type { PackedModule } from '../../formats/artifact/schema.js';
import type { TensorReader } from '../../formats/safetensors/read.js';
import { allocate, fromTyped, type NativeRuntime, type Tensor, typed } from '../../native/binding.js';
import { quantType } from '../core/quant-type.js';
import type { MixedWeight } from '../model/source.js';
import type { Decoded } from './decode.js';
import { firstWrong, problem } from './decode-scales.js';
import { convertExact, settle } from './native.js';

/** What the manifest says that a part's linear reads: bits and clip of its blocks. */
export function partActivations({ activations, ranks }: PackedModule, rank: number) {
  const { bits, clip } = activations!;
  if (ranks?.split !== 'k') return { bits, clip };
  const count = bits.length / ranks.count;
  const own = <T>(list: readonly T[]): T[] => list.slice(count * rank, count * (rank + 1));
  return { bits: own(bits), clip: own(clip) };
}

/** The tensors bits, clip and blocks of a part against the manifest, bit by bit. */
export function checkActivations(
  weights: TensorReader,
  prefix: string,
  module: PackedModule,
  rank: number,
  decoded: Decoded,
): void {
  const { bits, clip } = partActivations(module, rank);
  const compare = (suffix: string, expected: ArrayLike<number>, what: string): void => {
    const tensor = weights.tensor(`${prefix}.${suffix}`);
    const got: ArrayLike<number> = suffix === 'clip' ? wordsOf(tensor) : typed<Uint8Array | Int32Array>(tensor);
    const wrong = firstWrong(got, expected.length, (b) => expected[b]!);
    problem(decoded, `${prefix}.${suffix}`, what, wrong);
    tensor.dispose();
  };
  const places = { 4: -1, 8: 0 };
  compare('bits', bits, 'a block of activations does not have the precision of the manifest');
  const words = new Uint32Array(Float32Array.from(clip).buffer);
  compare('clip', words, 'the clip of a block is not the one of the manifest');
  const numbers = bits.map((each) => (each === 8 ? places[8]++ : places[4]--));
  compare('blocks', numbers, 'a block is not numbered among those of its precision');
}

/** The bit patterns of f32. */
function wordsOf(tensor: Tensor): Uint32Array {
  return new Uint32Array(tensor.bytes().slice().buffer);
}

/**
 * What W4Ax multiplies with (src/model/source.ts) of a decoded module that reads codes: its codes one a byte, its scales in f32. The
 * caller disposes of both, and of `decoded`.
 */
export async function mixedOf(
  rt: NativeRuntime,
  module: PackedModule,
  { parts }: Pick<Decoded, 'parts'>,
): Promise<MixedWeight> {
  const { bits, clip } = module.activations!;
  const stored = parts.get('scales')!;
  const scales = await wideScales(rt, stored);
  const codes = allocate('i8', module.shape);
  spread(parts.get('codes')!.bytes(), typed<Int8Array>(codes), module.shape[1], quantType(module.type).bits);
  const permutation = parts.get('permutation');
  return {
    codes,
    scales,
    form: {
      ...(permutation && { order: typed<Int32Array>(permutation).slice() }),
      blocks: { bits: Uint8Array.from(bits), clip: Float32Array.from(clip) },
    },
  };
}

/** Scales of any dtype in f32, which holds all of them. The caller disposes of it. */
export async function wideScales(rt: NativeRuntime, stored: Tensor): Promise<Tensor> {
  if (stored.dtype === 'f32') return stored.view(stored.shape);
  const decode = { f8_e8m0: (byte: number) => 2 ** (byte - 127), f8_e4m3: e4m3 }[stored.dtype as 'f8_e8m0'];
  if (decode) return fromTyped('f32', stored.shape, Float32Array.from(stored.bytes(), decode));
  const wide = convertExact(rt, stored, 'f32');
  await settle(rt);
  wide.wrong(); // NaN would be reported here, and shows in what is computed
  return wide.output;
}

function e4m3(byte: number): number {
  const [exponent, fraction] = [(byte >> 3) & 15, byte & 7];
  const size = exponent === 0 ? fraction / 2 ** 9 : ((8 + fraction) / 8) * 2 ** (exponent - 7);
  return (byte & 127) === 127 ? Number.NaN : byte & 128 ? -size : size;
}

export function disposeMixedCodes({ codes, scales }: MixedWeight): void {
  for (const tensor of [codes, scales]) tensor.dispose();
}

/** Two's complement codes of rows of `k`, each a little-endian bitstream. */
function spread(rows: Uint8Array, codes: Int8Array, k: number, bits: number): void {
  const rowBytes = Math.ceil((k * bits) / 8);
  const shift = 32 - bits;
  for (let n = 0; n * k < codes.length; n++)
    for (let i = 0; i < k; i++) {
      const at = n * rowBytes + ((i * bits) >> 3);
      const window = rows[at]! | ((rows[at + 1] ?? 0) << 8);
      codes[n * k + i] = ((window >> ((i * bits) & 7)) << shift) >> shift;
    }
}
