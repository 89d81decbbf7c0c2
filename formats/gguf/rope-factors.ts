/**
 * Llama 3.1: wavelengths above original / low are stretched by `factor`, those below original / high stay, and between
 * the two the reciprocals are blended.
 */
export function llama3Factors(
  base: number,
  headDim: number,
  factor: number,
  low: number,
  high: number,
  original: number,
) {
  return Float32Array.from({ length: headDim / 2 }, (_, i) => {
    const wavelength = 2 * Math.PI * base ** ((2 * i) / headDim);
    if (wavelength < original / high) return 1;
    if (wavelength > original / low) return factor;
    const share = (original / wavelength - low) / (high - low);
    return 1 / ((1 - share) / factor + share);
  });
}
