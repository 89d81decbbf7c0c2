/** Scales of any stored dtype as f32; all of them are exact in it. */
export function numbersOf(
  data: ArrayBufferView,
  dtype: 'f32' | 'f16' | 'bf16' | 'f8_e8m0' | 'f8_e4m3',
): Float32Array<ArrayBuffer> | Float32Array {
  if (dtype === 'f32') return data as Float32Array;
  const from = { f16: half, bf16, f8_e8m0: e8m0, f8_e4m3: e4m3 }[dtype];
  return Float32Array.from(data as Uint16Array | Uint8Array, from);
}

function bf16(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 7) & 255;
  const fraction = bits & 127;
  if (exponent === 255) return fraction ? Number.NaN : sign * Number.POSITIVE_INFINITY;
  return sign * (exponent === 0 ? fraction * 2 ** -133 : (128 + fraction) * 2 ** (exponent - 134));
}

function half(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return fraction ? Number.NaN : sign * Number.POSITIVE_INFINITY;
  return sign * (exponent === 0 ? fraction * 2 ** -24 : (1024 + fraction) * 2 ** (exponent - 25));
}

function e8m0(bits: number): number {
  return bits === 255 ? Number.NaN : 2 ** (bits - 127);
}

function e4m3(bits: number): number {
  const sign = bits & 128 ? -1 : 1;
  const exponent = (bits >> 3) & 15;
  const fraction = bits & 7;
  if (exponent === 15 && fraction === 7) return Number.NaN;
  return sign * (exponent === 0 ? fraction * 2 ** -9 : (8 + fraction) * 2 ** (exponent - 10));
}
