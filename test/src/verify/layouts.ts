// The closed forms of the layout facts (word and nibble of element (k, n)), never lpq's packer: what the verifier is tested with
// shares no code with it.
import type { SafetensorsDtype } from '../../../formats/safetensors/dtypes.js';
import { groupCount } from '../../../src/core/granularity.js';
import { quantType } from '../../../src/core/quant-type.js';
import { bitstream, canonicalData, type ModuleSpec, type Numbers, weights } from './numbers.js';

export interface TensorOut {
  readonly name: string;
  readonly dtype: SafetensorsDtype;
  readonly shape: readonly number[];
  readonly data: ArrayBufferView;
}

/** Words of `rows` streams, transposed: word w of stream r lies at [w][r]. */
function streamsDown(rows: number, width: number, bits: number, at: (r: number, i: number) => number): Int32Array {
  const words = new Int32Array(bitstream(rows, width, bits, 32, at).buffer);
  const count = words.length / rows;
  return Int32Array.from({ length: words.length }, (_, i) => words[(i % rows) * count + Math.floor(i / rows)]!);
}

/** MARLIN's B from stored codes: the closed form of element (k, n). */
export function marlinWords(np: number, kp: number, stored: (n: number, k: number) => number): Int32Array {
  const words = new Uint32Array((kp / 16) * 2 * np);
  for (let n = 0; n < np; n++)
    for (let k = 0; k < kp; k++) {
      const [kt, kr, nt, j, c] = [Math.floor(k / 16), k % 16, Math.floor(n / 64), Math.floor((n % 64) / 16), n % 16];
      const lane = 4 * (c % 8) + Math.floor((kr % 8) / 2);
      const nibble = 4 * (kr & 1) + 2 * Math.floor(c / 8) + Math.floor(kr / 8);
      words[kt * 2 * np + nt * 128 + lane * 4 + j]! |= stored(n, k) << (4 * nibble);
    }
  return new Int32Array(words.buffer);
}

/** MARLIN's permuted scales [G][Np]: per 64 columns, or per 32 for whole channels. */
export function marlinScales(np: number, groups: number, scale: (n: number, g: number) => number): Uint16Array {
  const grouped = groups > 1;
  const block = grouped ? 64 : 32;
  const from = (p: number) =>
    grouped ? Math.floor(p / 8) + 8 * (p % 8) : 2 * Math.floor(p / 8) + 8 * Math.floor((p % 8) / 2) + (p % 2);
  return Uint16Array.from({ length: groups * np }, (_, i) => {
    const column = i % np;
    return scale(column - (column % block) + from(column % block), Math.floor(i / np));
  });
}

export const roundUp = (value: number, step: number): number => Math.ceil(value / step) * step;

/** The packed tensors of a module, and its padded shape. */
export function packModule(
  name: string,
  spec: ModuleSpec,
  numbers: Numbers,
): { tensors: TensorOut[]; padded: [number, number] } {
  const { n, k, layout } = spec;
  const type = quantType(spec.type);
  const { bits } = type;
  const bias = type.kind === 'int' && type.signed ? 2 ** (bits - 1) : 0;
  const groups = groupCount(spec.granularity, k);
  const stored = (row: number, i: number) => numbers.codes[row * k + i]! ^ bias;
  const zero = (row: number, g: number) => numbers.zeros[row * groups + g]! + bias;
  const scale = (row: number, g: number) => (row < n ? numbers.scales[row * groups + g]! : 0);
  const one = (suffix: string, dtype: SafetensorsDtype, shape: number[], data: ArrayBufferView): TensorOut => ({
    name: `${name}.${suffix}`,
    dtype,
    shape,
    data,
  });
  const words = (count: number) => Math.ceil((count * bits) / 32);
  const scaleDtype = spec.scaleDtype === 'bf16' ? 'BF16' : 'F16';
  if (layout === 'marlin') {
    const [np, kp] = [roundUp(n, 256), roundUp(k, 128)];
    const code = (row: number, i: number) => (row < n && i < k ? stored(row, i) : 8);
    return {
      padded: [np, kp],
      tensors: [
        one('B', 'I32', [kp / 16, 2 * np], marlinWords(np, kp, code)),
        one('s', 'F16', [groups, np], marlinScales(np, groups, scale)),
      ],
    };
  }
  const padded: [number, number] = [n, k];
  if (layout === 'compressed-tensors')
    return {
      padded,
      tensors: [
        one('weight_packed', 'I32', [n, words(k)], new Int32Array(bitstream(n, k, bits, 32, stored).buffer)),
        one('weight_scale', scaleDtype, [n, groups], numbers.scales),
        one('weight_shape', 'I64', [2], BigInt64Array.of(BigInt(n), BigInt(k))),
        ...(spec.zeros.kind === 'int'
          ? [
              one(
                'weight_zero_point',
                'I32',
                [words(n), groups],
                streamsDown(groups, n, bits, (g, row) => zero(row, g)),
              ),
            ]
          : []),
        ...(spec.actOrder ? [one('weight_g_idx', 'I32', [k], numbers.group)] : []),
      ],
    };
  if (layout === 'gptq' || layout === 'gptq_v2') {
    const less = layout === 'gptq' ? 1 : 0;
    const mask = 2 ** bits - 1;
    const zeros = bitstream(groups, n, bits, 32, (g, row) => (zero(row, g) - less) & mask);
    const turned = Uint16Array.from({ length: groups * n }, (_, i) => scale(i % n, Math.floor(i / n)));
    return {
      padded,
      tensors: [
        one('qweight', 'I32', [words(k), n], streamsDown(n, k, bits, stored)),
        one('qzeros', 'I32', [groups, words(n)], new Int32Array(zeros.buffer)),
        one('scales', 'F16', [groups, n], turned),
        one('g_idx', 'I32', [k], numbers.group),
      ],
    };
  }
  if (layout === 'dense')
    return { padded, tensors: [one('weight', 'F32', [n, k], Float32Array.from(weights(spec, numbers)))] };
  const data = canonicalData(spec, numbers);
  return {
    padded,
    tensors: [
      one('codes', 'U8', [n, Math.ceil((k * bits) / 8)], data.codes as Uint8Array),
      one('scales', scaleDtype, [n, groups], numbers.scales),
      ...(data.zeros
        ? [
            one(
              'zeros',
              spec.zeros.kind === 'int' && spec.zeros.dtype === 'u8' ? 'U8' : 'I16',
              [n, groups],
              data.zeros as Uint8Array,
            ),
          ]
        : []),
      ...(spec.actOrder ? [one('g_idx', 'I32', [k], numbers.group)] : []),
    ],
  };
}
