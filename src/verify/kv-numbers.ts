import type { KvScheme } from '../../formats/kv/scheme.js';
import { allocate, fromTyped, type NativeRuntime, type Tensor, typed } from '../../native/binding.js';
import { halfValue } from './floats.js';
import { type PageShape, storedDims } from './kv-case.js';
import { codeOf, fittedEnds, stepOf } from './kv-fit.js';
import { settle } from './native.js';

/** One side of tokens as it is stored. */
export interface Numbers {
  readonly codes: Uint8Array;
  readonly scales: Float64Array;
  readonly zeros: Float64Array;
}

export interface Grid {
  readonly bits: number;
  readonly groupTokens: number;
  readonly groupDims: number;
  readonly fit: boolean;
}

export const gridOf = (scheme: KvScheme, side: 'keys' | 'values'): Grid => {
  const { keys, values, fit = false } = scheme;
  if (side === 'values') return { bits: values.bits, groupTokens: 1, groupDims: values.group, fit };
  return keys.granularity === 'channel'
    ? { bits: keys.bits, groupTokens: keys.group, groupDims: 1, fit }
    : { bits: keys.bits, groupTokens: 1, groupDims: keys.group, fit };
};

/** The first `tokens` rows of x [.., width], quantized by the rule of formats/kv/spec.md. */
export function quantizeRows(x: Float32Array, tokens: number, width: number, grid: Grid): Numbers {
  const { bits, groupTokens, groupDims } = grid;
  const columns = width / groupDims;
  const top = 2 ** bits - 1;
  const codes = new Uint8Array(tokens * width);
  const scales = new Float64Array((tokens / groupTokens) * columns);
  const zeros = new Float64Array(scales.length);
  for (let i = 0; i < scales.length; i++) {
    const first = Math.floor(i / columns) * groupTokens * width + (i % columns) * groupDims;
    let [low, high] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
    const each = (look: (at: number) => void): void => {
      for (let t = 0; t < groupTokens; t++) for (let c = 0; c < groupDims; c++) look(first + t * width + c);
    };
    each((at) => {
      const value = x[at] as number;
      if (value < low) low = value;
      if (value > high) high = value;
    });
    if (grid.fit) {
      const numbers = new Float64Array(groupTokens * groupDims);
      let count = 0;
      each((at) => {
        numbers[count++] = x[at] as number;
      });
      [low, high] = fittedEnds(numbers, low, high, top);
    }
    const scale = stepOf(low, high, top);
    scales[i] = scale;
    zeros[i] = low;
    each((at) => {
      codes[at] = codeOf(x[at] as number, low, scale, top);
    });
  }
  return { codes, scales, zeros };
}

/** One side of tokens as numbers f64 [T, width]: steps + zeros. */
export interface Rows {
  /** Code times scale; 0 of exact tokens. */
  readonly steps: Float64Array<ArrayBuffer>;
  /** Zeros; of exact tokens the number itself. */
  readonly zeros: Float64Array<ArrayBuffer>;
}

/** What is stored of the first tokens, then exact rows of x [.., width], `tokens` together. */
export function rowsOf(packed: Numbers, x: Float32Array, tokens: number, width: number, grid: Grid): Rows {
  const { groupTokens, groupDims } = grid;
  const columns = width / groupDims;
  const steps = new Float64Array(tokens * width);
  const zeros = new Float64Array(tokens * width);
  for (let at = 0; at < steps.length; at++) {
    if (at >= packed.codes.length) {
      zeros[at] = x[at] as number;
      continue;
    }
    const group = Math.floor(Math.floor(at / width) / groupTokens) * columns + Math.floor((at % width) / groupDims);
    steps[at] = (packed.codes[at] as number) * (packed.scales[group] as number);
    zeros[at] = packed.zeros[group] as number;
  }
  return { steps, zeros };
}

/** One side of the pages as the verifier's own decoder reads it. */
export async function decodeSide(
  rt: NativeRuntime,
  tensors: readonly Tensor[],
  scheme: KvScheme,
  page: PageShape & { readonly block: number },
  side: 'keys' | 'values',
  table: readonly number[],
  tokens: number,
): Promise<Numbers> {
  const grid = gridOf(scheme, side);
  const values = side === 'values';
  const dims = storedDims(page);
  const width = page.heads * dims;
  const groups = [tokens / grid.groupTokens, width / grid.groupDims];
  const [codes, scales, zeros] = [allocate('u8', [tokens, width]), allocate('f16', groups), allocate('f16', groups)];
  const pages = fromTyped('i32', [table.length], Int32Array.from(table));
  const whole = tensors.length === 1;
  rt.enqueue(
    'verify_kv_decode',
    [tensors[whole ? 0 : values ? 2 : 0] as Tensor, tensors[whole ? 0 : values ? 3 : 1] as Tensor, pages],
    [codes, scales, zeros],
    {
      form: scheme.form,
      outer: page.order === 'outer',
      values,
      channel: grid.groupTokens > 1,
      heads: page.heads,
      headDim: dims,
      pageTokens: page.tokens,
      bits: grid.bits,
      otherBits: values ? scheme.keys.bits : scheme.values.bits,
      group: Math.max(grid.groupTokens, grid.groupDims),
      run: Math.min(128, page.block),
    },
  );
  await settle(rt);
  const found: Numbers = {
    codes: typed<Uint8Array>(codes).slice(),
    scales: Float64Array.from(typed<Uint16Array>(scales), halfValue),
    zeros: Float64Array.from(typed<Uint16Array>(zeros), halfValue),
  };
  for (const tensor of [codes, scales, zeros, pages]) tensor.dispose();
  return found;
}

/** Keys and values [length, width] as a cache holds them once the first `packed` tokens are packed. */
export function sidesOf(
  scheme: KvScheme,
  { k, v }: { readonly k: Float32Array; readonly v: Float32Array },
  packed: number,
  length: number,
  width: number,
): [Rows, Rows] {
  const side = (x: Float32Array, grid: Grid) => rowsOf(quantizeRows(x, packed, width, grid), x, length, width, grid);
  return [side(k, gridOf(scheme, 'keys')), side(v, gridOf(scheme, 'values'))];
}
