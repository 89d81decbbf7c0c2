/**
 * Round-to-nearest written again from docs/internals/numerics.md, one weight at a time and by search: every code of a type is
 * tried. It shares nothing with the implementation but the names of types. f32 is Math.fround after each operation
 * (a quotient or product of two f32 rounded from f64 is the correctly rounded f32 one).
 */
export const f32 = Math.fround;

/** The numbers of a type by code; NaN where a pattern is no number. Floats are built by walking up from zero. */
export function values(name: string): number[] {
  const integer = /^([ui])(\d)$/.exec(name);
  if (integer) {
    const count = 2 ** Number(integer[2]);
    const list = Array.from({ length: count }, (_, code) => code);
    return integer[1] === 'u' ? list : list.map((code) => (code < count / 2 ? code : code - count));
  }
  const [, exponent, mantissa] = /^f\de(\d)m(\d)$/.exec(name)!.map(Number) as [number, number, number];
  const bias = exponent === 1 ? 0 : 2 ** (exponent - 1) - 1;
  const positive: number[] = [];
  // Two binades share the least step (subnormals and the first normal one), each later one doubles it.
  let value = 0;
  let step = 2 ** (1 - bias - mantissa);
  for (let binade = 0; binade < 2 ** exponent; binade++) {
    if (binade >= 2) step *= 2;
    for (let i = 0; i < 2 ** mantissa; i++, value += step) positive.push(value);
  }
  if (name === 'f8e4m3') positive[127] = Number.NaN;
  if (name === 'f8e5m2') positive.fill(Number.NaN, 124);
  return [...positive, ...positive.map((x) => -x)];
}

/** The code whose number is nearest to x; ties to the even code; -0 never. */
export function nearest(table: readonly number[], x: number): number {
  let best = -1;
  for (let code = 0; code < table.length; code++) {
    const v = table[code]!;
    if (Number.isNaN(v) || Object.is(v, -0)) continue;
    const d = Math.abs(v - x);
    const least = best < 0 ? Number.POSITIVE_INFINITY : Math.abs(table[best]! - x);
    if (d < least || (d === least && code % 2 === 0)) best = code;
  }
  return best;
}

/** Rounds half to even. */
export function rint(x: number): number {
  const low = Math.floor(x);
  const rest = x - low;
  return rest < 0.5 || (rest === 0.5 && low % 2 === 0) ? low : low + 1;
}

/** A 16-bit float of `mantissa` stored bits and least normal exponent `low`, as a number; overflows to infinity. */
function half(x: number, mantissa: number, low: number, largest: number): number {
  if (x === 0) return 0;
  const power = Math.max(Math.floor(Math.log2(Math.abs(x))), low);
  // log2 itself is rounded, and may be off by one next to a power of two.
  const exact =
    Math.abs(x) >= 2 ** (power + 1) ? power + 1 : Math.abs(x) < 2 ** power && power > low ? power - 1 : power;
  const quantum = 2 ** (exact - mantissa);
  const rounded = rint(x / quantum) * quantum;
  return Math.abs(rounded) > largest ? Math.sign(x) * Number.POSITIVE_INFINITY : rounded;
}
export const toF16 = (x: number): number => half(x, 10, -14, 65504);
export const toBf16 = (x: number): number => half(x, 7, -126, (2 - 2 ** -7) * 2 ** 127);

export function fromF16(bits: number): number {
  const fraction = bits & 1023;
  const power = (bits >> 10) & 31;
  const magnitude =
    power === 31
      ? fraction
        ? Number.NaN
        : Number.POSITIVE_INFINITY
      : power === 0
        ? fraction * 2 ** -24
        : (1024 + fraction) * 2 ** (power - 25);
  return bits >> 15 ? -magnitude : magnitude;
}
export function fromBf16(bits: number): number {
  return new Float32Array(new Uint32Array([bits << 16]).buffer)[0]!;
}

/** A scale or zero as stored -> number. */
export function stored(dtype: string, raw: ArrayLike<number>, i: number): number {
  const x = raw[i]!;
  if (dtype === 'f16') return fromF16(x);
  if (dtype === 'bf16') return fromBf16(x);
  if (dtype === 'f8_e8m0') return x === 255 ? Number.NaN : 2 ** (x - 127);
  if (dtype === 'f8_e4m3') return values('f8e4m3')[x]!;
  return x;
}

export interface ReferenceScheme {
  type: string;
  symmetric: boolean;
  scaleDtype: string;
  /** Constant zero of symmetric grids. */
  zero: number;
}
export interface ReferenceGroup {
  codes: number[];
  scale: number;
  zero: number;
}

/** The fp32 scale of a group; 0 for a group of zeros. */
export function idealScale(w: readonly number[], scheme: ReferenceScheme): number {
  const low = Math.min(0, ...w);
  const high = Math.max(0, ...w);
  const bits = Number(/^[uif](\d)/.exec(scheme.type)![1]);
  const float = scheme.type.startsWith('f');
  if (!scheme.symmetric) return f32(f32(high - low) / (2 ** bits - 1));
  const magnitude = Math.max(-low, high);
  if (float) {
    let top = Math.max(...values(scheme.type).filter((x) => !Number.isNaN(x)));
    while (top > 512) top /= 2;
    return f32(magnitude / top);
  }
  return f32((2 * magnitude) / (2 ** bits - 1));
}

/** One group of f32 weights; `global` as the whole tensor determines it. */
export function roundGroup(w: readonly number[], scheme: ReferenceScheme, global = 1): ReferenceGroup {
  const table = values(scheme.type);
  const numbers = table.filter((x) => !Number.isNaN(x));
  const top = Math.max(...numbers);
  const bottom = Math.min(...numbers);
  const ideal = idealScale(w, scheme);
  let scale: number;
  let used: number;
  if (ideal === 0) {
    scale = used = 1; // every code is then the one of zero
  } else if (scheme.scaleDtype === 'f8_e8m0') {
    const magnitude = Math.max(...w.map(Math.abs));
    const unit = scheme.type.startsWith('f') ? top : 2 ** (Number(scheme.type[1]) - 2);
    let power = -127;
    while (2 ** (power + 1) * 2 ** Math.floor(Math.log2(unit)) <= magnitude) power++;
    scale = used = 2 ** power;
  } else if (scheme.scaleDtype === 'f8_e4m3') {
    const grid = values('f8e4m3');
    scale = Math.max(grid[nearest(grid, f32(ideal / global))]!, 2 ** -9);
    used = f32(scale * global);
  } else {
    used = ideal;
    scale = scheme.scaleDtype === 'f16' ? toF16(ideal) : scheme.scaleDtype === 'bf16' ? toBf16(ideal) : ideal;
  }
  const zero = scheme.symmetric ? scheme.zero : Math.min(rint(f32(-Math.min(0, ...w) / used)) + bottom, top);
  const codes = w.map((x) => {
    const q = f32(x / used);
    if (scheme.type.startsWith('f')) return nearest(table, q);
    const whole = Math.floor(zero);
    const point = Math.min(Math.max(rint(f32(q + (zero - whole))) + whole, bottom), top);
    return table.indexOf(point);
  });
  return { codes, scale, zero };
}

/** Element k of a little-endian bitstream, bit by bit. */
export function codeAt(stream: ArrayLike<number>, offset: number, bits: number, k: number): number {
  let code = 0;
  for (let b = 0; b < bits; b++) {
    const at = k * bits + b;
    code |= ((stream[offset + (at >> 3)]! >> (at & 7)) & 1) << b;
  }
  return code;
}

/** A deterministic stream of numbers in [0, 1) (mulberry32). */
export function random(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}
