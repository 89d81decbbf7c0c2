let table: Float32Array | undefined;

/** The values of f16 by their bits, as f32: blocks begin with one or two of them. */
export function halves(): Float32Array {
  table ??= Float32Array.from({ length: 65536 }, (_, bits) => {
    const exponent = (bits >> 10) & 31;
    const fraction = bits & 1023;
    const sign = bits & 0x8000 ? -1 : 1;
    if (exponent === 31) return fraction === 0 ? sign * Number.POSITIVE_INFINITY : Number.NaN;
    return sign * (exponent === 0 ? fraction * 2 ** -24 : (1024 + fraction) * 2 ** (exponent - 25));
  });
  return table;
}

/**
 * Blocks of one type → f32: `bytes` holds `blocks` of them one behind the other, `out` takes the values in order. Every product
 * and every sum is rounded to f32 once, as ggml computes them.
 */
export type DecodeBlocks = (bytes: Uint8Array, blocks: number, out: Float32Array) => void;

/** The f16 at `at`, little-endian, as an index of halves(). */
export const u16 = (bytes: Uint8Array, at: number): number => (bytes[at] as number) | ((bytes[at + 1] as number) << 8);
