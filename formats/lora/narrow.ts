/** The nearest number of a 16-bit dtype, ties to the even one, as its bits; out of range: infinity. */
export const NARROW = { bf16, f16 } as const;

const word = new Float32Array(1);
const bits = new Uint32Array(word.buffer);

function bf16(value: number): number {
  word[0] = value;
  const whole = bits[0] as number;
  if (Number.isNaN(value)) return 0x7fc0;
  return (whole + 0x7fff + ((whole >>> 16) & 1)) >>> 16;
}

function f16(value: number): number {
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  const size = Math.abs(value);
  if (Number.isNaN(value)) return 0x7e00;
  // Steps are 2^-24 below 2^-14, and 2^(e - 10) in [2^e, 2^(e + 1)).
  const exponent = Math.max(-14, Math.min(15, Math.floor(Math.log2(size || 1))));
  const steps = even(size * 2 ** (10 - exponent));
  if (steps >= 2048 && exponent === 15) return sign | 0x7c00;
  return sign | (size < 2 ** -14 ? steps : ((exponent + 14) << 10) + steps);
}

function even(value: number): number {
  const low = Math.floor(value);
  const rest = value - low;
  return rest > 0.5 || (rest === 0.5 && low % 2 === 1) ? low + 1 : low;
}
