/** An axis: where a value lies, from `low` to `high`, and which values have a line. */
export interface Scale {
  (value: number): number;
  readonly low: number;
  readonly high: number;
  readonly ticks: readonly number[];
}

/** Ticks at powers of ten, and between them where there are few. */
export function logScale(least: number, most: number, from: number, to: number): Scale {
  const [low, high] = [least / 1.3, Math.max(most, least * 3) * 1.1];
  const [a, b] = [Math.log10(low), Math.log10(high)];
  const steps = b - a < 2 ? [1, 2, 5] : [1];
  const decades = Array.from({ length: Math.ceil(b) - Math.floor(a) + 1 }, (_, i) => 10 ** (Math.floor(a) + i));
  const ticks = decades
    .flatMap((each) => steps.map((step) => each * step))
    .filter((each) => each >= low && each <= high);
  const map = (value: number) => from + ((Math.log10(value) - a) / (b - a)) * (to - from);
  return Object.assign(map, { low, high, ticks });
}

/** A coordinate. */
export const f = (value: number): string => value.toFixed(1);
/** A number at a tick. */
export const plain = (value: number): string =>
  value >= 1e4 || value < 1e-3 ? value.toExponential(0) : String(Number(value.toPrecision(3)));
export const escaped = (text: string): string =>
  text.replace(/[&<>"]/g, (sign) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[sign]!);
