/**
 * Encoders of foreign formats from plain arrays, written from the formats' definitions bit by bit; nothing of formats/ is
 * used, so that a reader that agrees with them agrees with the definition.
 */
export interface Codes {
  readonly n: number;
  readonly k: number;
  readonly bits: number;
  /** Groups in a row. */
  readonly groups: number;
  /** [K] */
  readonly gIdx: readonly number[];
  /** [N*K], unsigned. */
  readonly codes: readonly number[];
  /** [N*G], true zero points. */
  readonly zeros: readonly number[];
  /** [N*G], f16 bit patterns. */
  readonly scales: readonly number[];
}

export interface Encoded {
  readonly name: string;
  readonly dtype: 'I32' | 'F16' | 'BF16' | 'F32' | 'I64' | 'U8' | 'I8' | 'F8_E4M3';
  readonly shape: readonly number[];
  readonly data: ArrayBufferView;
}

/** Sets bits of field i of a run of words, one bit at a time. */
function put(words: Int32Array, at: (word: number) => number, bit: number, bits: number, value: number): void {
  for (let b = 0; b < bits; b++)
    if ((value >> b) & 1) {
      const place = at(Math.floor((bit + b) / 32));
      words[place] = (words[place] as number) | (1 << ((bit + b) % 32));
    }
}

export function gptqTensors(name: string, c: Codes, convention: 'v1' | 'v2', gIdx = true): Encoded[] {
  const { n, k, bits, groups } = c;
  const rows = Math.ceil((k * bits) / 32);
  const qweight = new Int32Array(rows * n);
  for (let row = 0; row < n; row++)
    for (let i = 0; i < k; i++) put(qweight, (w) => w * n + row, i * bits, bits, c.codes[row * k + i] as number);
  const width = Math.ceil((n * bits) / 32);
  const qzeros = new Int32Array(groups * width);
  const scales = new Uint16Array(groups * n);
  for (let g = 0; g < groups; g++)
    for (let row = 0; row < n; row++) {
      const zero = c.zeros[row * groups + g] as number;
      const stored = convention === 'v1' ? (zero - 1 + 2 ** bits) % 2 ** bits : zero;
      put(qzeros, (w) => g * width + w, row * bits, bits, stored);
      scales[g * n + row] = c.scales[row * groups + g] as number;
    }
  return [
    { name: `${name}.qweight`, dtype: 'I32', shape: [rows, n], data: qweight },
    { name: `${name}.qzeros`, dtype: 'I32', shape: [groups, width], data: qzeros },
    { name: `${name}.scales`, dtype: 'F16', shape: [groups, n], data: scales },
    ...(gIdx ? [{ name: `${name}.g_idx`, dtype: 'I32', shape: [k], data: Int32Array.from(c.gIdx) } as const] : []),
  ];
}

export function awqTensors(name: string, c: Codes): Encoded[] {
  const { n, k, groups } = c;
  // Column j of eight sits in this nibble.
  const nibble = [0, 4, 1, 5, 2, 6, 3, 7];
  const pack = (rows: number, value: (row: number, column: number) => number): Int32Array => {
    const words = new Int32Array((rows * n) / 8);
    for (let r = 0; r < rows; r++)
      for (let column = 0; column < n; column++) {
        const at = (r * n) / 8 + Math.floor(column / 8);
        words[at] = (words[at] as number) | (value(r, column) << (4 * (nibble[column % 8] as number)));
      }
    return words;
  };
  const scales = new Uint16Array(groups * n);
  for (let g = 0; g < groups; g++)
    for (let row = 0; row < n; row++) scales[g * n + row] = c.scales[row * groups + g] as number;
  return [
    {
      name: `${name}.qweight`,
      dtype: 'I32',
      shape: [k, n / 8],
      data: pack(k, (i, row) => c.codes[row * k + i] as number),
    },
    {
      name: `${name}.qzeros`,
      dtype: 'I32',
      shape: [groups, n / 8],
      data: pack(groups, (g, row) => c.zeros[row * groups + g] as number),
    },
    { name: `${name}.scales`, dtype: 'F16', shape: [groups, n], data: scales },
  ];
}

export function packedTensors(
  name: string,
  c: Codes,
  options: { symmetric: boolean; packing?: 'dense' | 'whole'; gIdx?: boolean },
): Encoded[] {
  const { n, k, bits, groups } = c;
  const perWord = Math.floor(32 / bits);
  const whole = options.packing === 'whole';
  const place = (i: number) => (whole ? Math.floor(i / perWord) * 32 + (i % perWord) * bits : i * bits);
  const width = (count: number) => (whole ? Math.ceil(count / perWord) : Math.ceil((count * bits) / 32));
  const words = new Int32Array(n * width(k));
  for (let row = 0; row < n; row++)
    for (let i = 0; i < k; i++) put(words, (w) => row * width(k) + w, place(i), bits, c.codes[row * k + i] as number);
  const zeros = new Int32Array(width(n) * groups);
  for (let g = 0; g < groups; g++)
    for (let row = 0; row < n; row++)
      put(zeros, (w) => w * groups + g, place(row), bits, c.zeros[row * groups + g] as number);
  return [
    { name: `${name}.weight_packed`, dtype: 'I32', shape: [n, width(k)], data: words },
    { name: `${name}.weight_scale`, dtype: 'F16', shape: [n, groups], data: Uint16Array.from(c.scales) },
    { name: `${name}.weight_shape`, dtype: 'I64', shape: [2], data: BigInt64Array.of(BigInt(n), BigInt(k)) },
    ...(options.symmetric
      ? []
      : [{ name: `${name}.weight_zero_point`, dtype: 'I32', shape: [width(n), groups], data: zeros } as const]),
    ...(options.gIdx
      ? [{ name: `${name}.weight_g_idx`, dtype: 'I32', shape: [k], data: Int32Array.from(c.gIdx) } as const]
      : []),
  ];
}

/** The number an f16 pattern stands for. */
export function half(bits: number): number {
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  const size = exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15);
  return bits & 0x8000 ? -size : size;
}

/** The weight [N*K] by definition: (q - z) * scale, one product rounded to f32. */
export function weightOf(c: Codes): Float32Array<ArrayBuffer> {
  const { n, k, groups } = c;
  const out = new Float32Array(n * k);
  for (let row = 0; row < n; row++)
    for (let i = 0; i < k; i++) {
      const g = row * groups + (c.gIdx[i] as number);
      out[row * k + i] = ((c.codes[row * k + i] as number) - (c.zeros[g] as number)) * half(c.scales[g] as number);
    }
  return out;
}

/** Random codes whose zero points reach both ends. */
export function randomCodes(options: {
  n: number;
  k: number;
  bits: number;
  group?: number;
  symmetric?: boolean;
  actOrder?: boolean;
  seed?: number;
}): Codes {
  const { n, k, bits, group = k, symmetric = false, actOrder = false } = options;
  let state = (((options.seed ?? 1) + 1) * 2654435761) >>> 0;
  const next = (limit: number): number => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * limit);
  };
  const groups = k / group;
  const natural = Array.from({ length: k }, (_, i) => Math.floor(i / group));
  if (actOrder)
    for (let i = k - 1; i > 0; i--) {
      const j = next(i + 1);
      [natural[i], natural[j]] = [natural[j] as number, natural[i] as number];
    }
  const zeros = Array.from({ length: n * groups }, () => (symmetric ? 2 ** (bits - 1) : next(2 ** bits)));
  if (!symmetric) {
    zeros[0] = 0;
    zeros[zeros.length - 1] = 2 ** bits - 1;
  }
  return {
    n,
    k,
    bits,
    groups,
    gIdx: natural,
    codes: Array.from({ length: n * k }, () => next(2 ** bits)),
    zeros,
    // 0x1c00 to 0x23ff: f16 between 2^-8 and 2^-6.
    scales: Array.from({ length: n * groups }, () => 0x1c00 + next(0x800)),
  };
}

/** The codes of a weight [N*K] by rounding to nearest. */
export function roundToNearest(
  weight: ArrayLike<number>,
  options: { n: number; k: number; bits: number; group: number; symmetric: boolean },
): Codes {
  const { n, k, bits, group, symmetric } = options;
  const groups = k / group;
  const top = 2 ** bits - 1;
  const codes = new Array<number>(n * k);
  const zeros: number[] = [];
  const scales: number[] = [];
  for (let row = 0; row < n; row++)
    for (let g = 0; g < groups; g++) {
      let [low, high] = [0, 0];
      for (let i = g * group; i < (g + 1) * group; i++) {
        low = Math.min(low, weight[row * k + i] as number);
        high = Math.max(high, weight[row * k + i] as number);
      }
      const wide = symmetric ? (2 * Math.max(-low, high)) / top : (high - low) / top;
      const bitsOfScale = toHalf(wide > 0 ? wide : 1);
      const scale = half(bitsOfScale);
      const zero = symmetric ? 2 ** (bits - 1) : Math.min(top, Math.max(0, Math.round(-low / scale)));
      for (let i = g * group; i < (g + 1) * group; i++) {
        const q = Math.round((weight[row * k + i] as number) / scale) + zero;
        codes[row * k + i] = Math.min(top, Math.max(0, q));
      }
      zeros.push(zero);
      scales.push(bitsOfScale);
    }
  return { n, k, bits, groups, gIdx: Array.from({ length: k }, (_, i) => Math.floor(i / group)), codes, zeros, scales };
}

/** A normal f16 pattern near a positive number. */
function toHalf(value: number): number {
  const exponent = Math.floor(Math.log2(value));
  return ((exponent + 15) << 10) + Math.min(1023, Math.round((value / 2 ** exponent - 1) * 1024));
}
