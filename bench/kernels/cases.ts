import { LpqError } from '../../src/core/error.js';
import { QUANT_TYPES, type QuantType, quantType } from '../../src/core/quant-type.js';

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
export function parseTypes(text: string): QuantType[] {
  const types = text.trim() === 'all' ? [...QUANT_TYPES] : items('--types', text).map((name) => quantType(name));
  return once('--types', types, ({ name }) => name);
}

/** --shapes: a list of KxN, `table`, or `small`. Throws LPQ_USAGE. */
export function parseShapes(text: string, option = '--shapes'): GemmShape[] {
  const shapes = items(option, text).flatMap((item): readonly GemmShape[] => {
    if (item === 'table') return TABLE;
    if (item === 'small') return SMALL;
    const match = /^(\d+)[x×](\d+)$/i.exec(item);
    const [k, n] = [Number(match?.[1]), Number(match?.[2])];
    if (k >= 1 && n >= 1 && k < LARGEST && n < LARGEST) return [{ k, n }];
    throw new LpqError('LPQ_USAGE', `${option} does not take '${item}'`, {
      got: item,
      expected: 'K x N such as 4096x28672 (input features first), table or small',
    });
  });
  return once(option, shapes, shapeName);
}

/** --m: tokens of a product. Throws LPQ_USAGE. */
export function parseTokens(text: string): number[] {
  const tokens = items('--m', text).map((item) => {
    const m = Number(item);
    if (/^\d+$/.test(item) && m >= 1 && m <= 1 << 20) return m;
    throw new LpqError('LPQ_USAGE', `--m does not take '${item}'`, {
      got: item,
      expected: 'numbers of tokens such as 1,16,64',
    });
  });
  return once('--m', tokens, String).sort((a, b) => a - b);
}

/** --group: 32, 64, 128, or `channel` (0 for the operation). Throws LPQ_USAGE. */
export function parseGroup(text: string): number {
  if (text === 'channel') return 0;
  if (['32', '64', '128'].includes(text)) return Number(text);
  throw new LpqError('LPQ_USAGE', `--group does not take '${text}'`, {
    got: text,
    expected: '32, 64, 128 or channel, which is what the kernels read',
  });
}

/** --dtype, of activations and scales. Throws LPQ_USAGE. */
export function parseActivations(text: string): 'f16' | 'bf16' {
  if (text === 'f16' || text === 'bf16') return text;
  throw new LpqError('LPQ_USAGE', `--dtype does not take '${text}'`, { got: text, expected: 'f16 or bf16' });
}

function items(option: string, text: string): string[] {
  const list = text.split(',').map((item) => item.trim());
  if (list.every((item) => item !== '')) return list;
  throw new LpqError('LPQ_USAGE', `${option} names nothing`, {
    got: text === '' ? 'an empty list' : text,
    expected: 'a list with commas',
  });
}

function once<T>(option: string, list: readonly T[], name: (item: T) => string): T[] {
  const names = list.map(name);
  const twice = names.find((each, i) => names.indexOf(each) !== i);
  if (twice === undefined) return [...list];
  throw new LpqError('LPQ_USAGE', `${option} names ${twice} twice`, { got: names.join(',') });
}
