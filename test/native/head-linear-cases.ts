import { type DType, fromTyped, type Tensor } from '../../native/binding.js';
import { poisoned, Random } from './support.js';

interface HeadCase {
  readonly name: string;
  readonly tokens: number;
  readonly weight: 'f32' | 'f16' | 'bf16';
  readonly y: DType;
  readonly rows: number;
  readonly columns: number;
  readonly params: {
    readonly heads: number;
    readonly n: number;
    readonly k: number;
    readonly first: number;
    readonly turned: boolean;
    readonly fromDim: number;
    readonly from: number;
    readonly toDim: number;
    readonly to: number;
  };
}

/** Sizes that fill no tile, and such of DeepSeek's heads; both orders of a head's weight; every type. */
export const headCases: readonly HeadCase[] = [
  ...(['f32', 'f16', 'bf16'] as const).flatMap((weight) =>
    [true, false].map((turned) => ({
      name: `${weight}, odd sizes${turned ? ', turned' : ''}`,
      ...{ tokens: 3, weight, y: 'f32' as const, rows: 10, columns: 6 },
      params: {
        ...{ heads: 2, n: turned ? 5 : 2, k: turned ? 3 : 4, first: turned ? 1 : 3, turned },
        ...{ fromDim: 5, from: 1, toDim: 7, to: 2 },
      },
    })),
  ),
  {
    name: 'queries into the space of the latent, f16',
    ...{ tokens: 21, weight: 'bf16', y: 'f16', rows: 3 * 160, columns: 192 },
    params: { heads: 3, n: 192, k: 96, first: 0, turned: true, fromDim: 112, from: 0, toDim: 208, to: 0 },
  },
  {
    name: 'results out of it, bf16',
    ...{ tokens: 17, weight: 'f16', y: 'bf16', rows: 3 * 160, columns: 192 },
    params: { heads: 3, n: 64, k: 192, first: 96, turned: false, fromDim: 192, from: 0, toDim: 64, to: 0 },
  },
];

/** Numbers that each type holds: small multiples of 1/16. */
const numbers = (random: Random, count: number) =>
  random.normals(count).map((value) => Math.round(Math.max(-7, Math.min(7, value)) * 16) / 16) as Float32Array;

const bitsOf = { f32: (v: Float32Array) => v, f16: toF16, bf16: toBf16 };

export function headProduct(c: HeadCase): {
  x: Tensor;
  weight: { tensor: Tensor; values: Float32Array; rows: number; columns: number };
  y: Tensor;
} {
  const random = new Random(c.tokens + c.columns);
  const { heads, fromDim, toDim } = c.params;
  const values = numbers(random, c.rows * c.columns);
  return {
    x: fromTyped('f32', [c.tokens, heads * fromDim], random.normals(c.tokens * heads * fromDim)),
    weight: {
      tensor: fromTyped(c.weight, [c.rows, c.columns], bitsOf[c.weight](values)),
      ...{ values, rows: c.rows, columns: c.columns },
    },
    y: poisoned(c.y, [c.tokens, heads * toDim]),
  };
}

/** Of multiples of 1/16 below 8. */
function toF16(values: Float32Array): Uint16Array {
  return Uint16Array.from(values, (value) => {
    if (value === 0) return 0;
    const exponent = Math.floor(Math.log2(Math.abs(value)));
    return (value < 0 ? 0x8000 : 0) | ((exponent + 15) << 10) | (Math.abs(value) / 2 ** (exponent - 10) - 1024);
  });
}

function toBf16(values: Float32Array): Uint16Array {
  return Uint16Array.from(new Uint32Array(Float32Array.from(values).buffer), (bits) => bits >>> 16);
}
