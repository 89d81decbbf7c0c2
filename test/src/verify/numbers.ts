import type { PackedModule } from '../../../formats/artifact/schema.js';
import type { Zeros } from '../../../formats/canonical/schema.js';
import type { ModuleData } from '../../../formats/canonical/write.js';
import { type Granularity, groupCount, groupSizeOf } from '../../../src/core/granularity.js';
import { decodeCode, quantType } from '../../../src/core/quant-type.js';

export interface ModuleSpec {
  readonly type: string;
  readonly n: number;
  readonly k: number;
  readonly granularity: Granularity;
  readonly zeros: Zeros;
  readonly layout: PackedModule['layout'];
  readonly scaleDtype?: 'f16' | 'bf16';
  readonly actOrder?: boolean;
}

/** A module's numbers: codes as raw patterns [N][K], f16 or bf16 scale bits and zeros [N][G], groups [K]. */
export interface Numbers {
  readonly codes: Uint8Array;
  readonly scales: Uint16Array;
  readonly zeros: Int16Array;
  readonly group: Int32Array;
}

/** xorshift32: the same numbers every time. */
export function random(seed: number): () => number {
  let s = seed || 1;
  return () => {
    s ^= s << 13;
    s ^= s >>> 17;
    s ^= s << 5;
    return s >>> 0;
  };
}

export function drawNumbers(spec: ModuleSpec, seed: number): Numbers {
  const next = random(seed);
  const { n, k, granularity, zeros } = spec;
  const { bits } = quantType(spec.type);
  const groups = groupCount(granularity, k);
  const size = groupSizeOf(granularity, k);
  const codes = Uint8Array.from({ length: n * k }, () => (next() >>> 8) % 2 ** bits);
  // Positive normal numbers between 2^-9 and 2^-5 (f16), 2^-15 and 2^-7 (bf16).
  const scales = Uint16Array.from({ length: n * groups }, () =>
    spec.scaleDtype === 'bf16' ? 0x3800 + ((next() >>> 7) % 0x400) : 0x1800 + ((next() >>> 7) % 0x1000),
  );
  const constant = zeros.kind === 'const' ? zeros.value : 0;
  const zero = () => (zeros.kind === 'int' ? (next() >>> 8) % 2 ** bits : constant);
  const low = zeros.kind === 'int' && zeros.dtype === 'i16' ? 2 ** (bits - 1) : 0;
  const group = Int32Array.from({ length: k }, (_, i) => Math.floor(i / size));
  if (spec.actOrder) for (let i = k - 1; i > 0; i--) swap(group, i, next() % (i + 1));
  return { codes, scales, zeros: Int16Array.from({ length: n * groups }, () => zero() - low), group };
}

function swap(list: Int32Array, i: number, j: number): void {
  [list[i], list[j]] = [list[j]!, list[i]!];
}

/** Rows of values as little-endian bitstreams of ceil(width*bits/unit)*unit bits. */
export function bitstream(
  rows: number,
  width: number,
  bits: number,
  unit: number,
  at: (r: number, i: number) => number,
) {
  const rowBytes = (Math.ceil((width * bits) / unit) * unit) / 8;
  const bytes = new Uint8Array(rows * rowBytes);
  for (let r = 0; r < rows; r++)
    for (let i = 0; i < width; i++)
      for (let b = 0; b < bits; b++) {
        const bit = i * bits + b;
        if ((at(r, i) >> b) & 1) bytes[r * rowBytes + (bit >> 3)]! |= 1 << (bit & 7);
      }
  return bytes;
}

export function canonicalData(spec: ModuleSpec, numbers: Numbers): ModuleData {
  const { n, k } = spec;
  const { bits } = quantType(spec.type);
  return {
    codes: bitstream(n, k, bits, 8, (row, i) => numbers.codes[row * k + i]!),
    scales: numbers.scales,
    ...(spec.zeros.kind === 'int' && {
      zeros: spec.zeros.dtype === 'u8' ? Uint8Array.from(numbers.zeros) : numbers.zeros,
    }),
    ...(spec.actOrder && { g_idx: numbers.group }),
  };
}

/** W [N][K] in double precision: (q - z) * s. */
export function weights(spec: ModuleSpec, numbers: Numbers): Float64Array {
  const { n, k } = spec;
  const type = quantType(spec.type);
  const groups = groupCount(spec.granularity, k);
  return Float64Array.from({ length: n * k }, (_, at) => {
    const [row, i] = [Math.floor(at / k), at % k];
    const where = row * groups + numbers.group[i]!;
    const bitsOf = numbers.scales[where]!;
    const scale = spec.scaleDtype === 'bf16' ? bfloat(bitsOf) : half(bitsOf);
    return (decodeCode(type, numbers.codes[at]!) - numbers.zeros[where]!) * scale;
  });
}

export function half(bits: number): number {
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
  const magnitude = exponent === 0 ? fraction * 2 ** -24 : (1024 + fraction) * 2 ** (exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

function bfloat(bits: number): number {
  return new Float32Array(Uint32Array.of(bits << 16).buffer)[0]!;
}

export const NONE: Zeros = { kind: 'none' };
export const CHANNEL: Granularity = { kind: 'channel' };
export const group = (size: number): Granularity => ({ kind: 'group', size });
