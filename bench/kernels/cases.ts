import { notTaken, oneOf } from '../../src/core/error.js';
import { QUANT_TYPES, type QuantType, quantType } from '../../src/core/quant-type.js';
import { listed } from '../lists.js';

/** A weight of K input and N output features. */
export interface GemmShape {
  readonly k: number;
  readonly n: number;
}

/** K x N of linears of 7B to 405B models: the shapes that kernels of this kind are compared on. */
export const TABLE: readonly GemmShape[] = [
  { k: 4096, n: 4096 },
  { k: 4096, n: 28672 },
  { k: 14336, n: 4096 },
  { k: 8192, n: 8192 },
  { k: 8192, n: 57344 },
  { k: 28672, n: 8192 },
];

/** What the plain loops of the CPU's operation do in a moment. */
export const SMALL: readonly GemmShape[] = [
  { k: 256, n: 256 },
  { k: 512, n: 256 },
];

const LARGEST = 2 ** 31 - 1024;

export const shapeName = ({ k, n }: GemmShape): string => `${k}x${n}`;

/** --types: a list of types, or `all`. Throws LPQ_TYPE, LPQ_USAGE. */
export const parseTypes = (text: string): QuantType[] =>
  listed(
    '--types',
    text,
    ({ name }) => name,
    (item) => (item === 'all' ? QUANT_TYPES : quantType(item)),
  );

/** --shapes: a list of KxN, `table`, or `small`. Throws LPQ_USAGE. */
export function parseShapes(text: string, option = '--shapes'): GemmShape[] {
  return listed(option, text, shapeName, (item) => {
    if (item === 'table') return TABLE;
    if (item === 'small') return SMALL;
    const match = /^(\d+)[x×](\d+)$/i.exec(item);
    const [k, n] = [Number(match?.[1]), Number(match?.[2])];
    if (k >= 1 && n >= 1 && k < LARGEST && n < LARGEST) return { k, n };
    throw notTaken(option, item, 'K x N such as 4096x28672 (input features first), table or small');
  });
}

/** --m: tokens of a product, ascending. Throws LPQ_USAGE. */
export function parseTokens(text: string): number[] {
  const tokens = listed('--m', text, String, (item) => {
    const m = Number(item);
    if (/^\d+$/.test(item) && m >= 1 && m <= 1 << 20) return m;
    throw notTaken('--m', item, 'numbers of tokens such as 1,16,64');
  });
  return tokens.sort((a, b) => a - b);
}

/** --group: 32, 64, 128, or `channel` (0 for the operation), which is what the kernels read. Throws LPQ_USAGE. */
export function parseGroup(text: string): number {
  const group = oneOf('--group', ['32', '64', '128', 'channel'], text);
  return group === 'channel' ? 0 : Number(group);
}

/** --dtype, of activations and scales. Throws LPQ_USAGE. */
export const parseActivations = (text: string): 'f16' | 'bf16' => oneOf('--dtype', ['f16', 'bf16'], text);
