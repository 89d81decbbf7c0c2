import { decodeCode, type FloatType, QUANT_TYPES, type QuantType, valueRange } from '../core/quant-type.js';

/** A type of elements: the 36 quantized types, and those of tensor cores and addresses. */
export interface ElementType {
  readonly name: string;
  readonly bits: number;
  readonly kind: 'int' | 'float';
  readonly signed: boolean;
  /** Floats: 1 sign, `exponent` and `mantissa` bits. */
  readonly exponent: number;
  readonly mantissa: number;
  readonly bias: number;
  /** The quantized type; absent for f16, bf16, f32, i16, i32, u16 and u32. */
  readonly quant?: QuantType;
}

const wide = (name: string, bits: number, exponent: number, mantissa: number): ElementType =>
  Object.freeze({
    name,
    bits,
    kind: exponent > 0 ? 'float' : 'int',
    signed: !name.startsWith('u'),
    exponent,
    mantissa,
    bias: exponent > 0 ? 2 ** (exponent - 1) - 1 : 0,
  });

const narrow = (quant: QuantType): ElementType =>
  Object.freeze({
    name: quant.name,
    bits: quant.bits,
    kind: quant.kind,
    signed: quant.signed,
    exponent: quant.kind === 'float' ? quant.exponent : 0,
    mantissa: quant.kind === 'float' ? quant.mantissa : 0,
    bias: quant.kind === 'float' ? quant.bias : 0,
    quant,
  });

/** Every element type by its name. */
export const ELEMENT_TYPES: ReadonlyMap<string, ElementType> = new Map(
  [
    ...QUANT_TYPES.map(narrow),
    wide('i16', 16, 0, 0),
    wide('u16', 16, 0, 0),
    wide('i32', 32, 0, 0),
    wide('u32', 32, 0, 0),
    wide('f16', 16, 5, 10),
    wide('bf16', 16, 8, 7),
    wide('f32', 32, 8, 23),
  ].map((type) => [type.name, type]),
);

/** The type of this name, which the caller knows to exist. */
export function elementType(name: string): ElementType {
  const type = ELEMENT_TYPES.get(name);
  if (!type) throw new RangeError(`no element type ${name}`);
  return type;
}

const words = new Uint32Array(2);
const singles = new Float32Array(words.buffer);
const doubles = new Float64Array(words.buffer);
const tables = new Map<ElementType, Float64Array>();
/** 2^(i - 1074). */
const powers = Float64Array.from({ length: 2098 }, (_, i) => 2 ** (i - 1074));

/** The number that `bits`, as they lie in memory, stand for. */
export function decode(type: ElementType, bits: number): number {
  if (type.bits <= 16) return decodeTable(type)[bits]!;
  if (type.kind === 'int') return type.signed ? bits | 0 : bits >>> 0;
  words[0] = bits;
  return singles[0]!;
}

/** Numbers of all patterns of a type of at most 16 bits. */
export function decodeTable(type: ElementType): Float64Array {
  let table = tables.get(type);
  if (!table) {
    table = Float64Array.from({ length: 2 ** type.bits }, (_, code) => numberOf(type, code));
    tables.set(type, table);
  }
  return table;
}

function numberOf(type: ElementType, code: number): number {
  // decodeCode has no infinities.
  if (type.quant && (type.quant.kind === 'int' || type.quant.special !== 'ieee')) return decodeCode(type.quant, code);
  if (type.kind === 'int') return type.signed && code >> (type.bits - 1) ? code - 2 ** type.bits : code;
  const top = 2 ** type.exponent - 1;
  const power = (code >> type.mantissa) & top;
  const fraction = code & (2 ** type.mantissa - 1);
  const size =
    power === top
      ? fraction === 0
        ? Number.POSITIVE_INFINITY
        : Number.NaN
      : power === 0
        ? fraction * 2 ** (1 - type.bias - type.mantissa)
        : (2 ** type.mantissa + fraction) * 2 ** (power - type.bias - type.mantissa);
  return code >> (type.bits - 1) ? -size : size;
}

/**
 * The bits of the number of a type that is nearest to `value`, ties to even. f16, bf16 and f32 become infinite beyond their range; integers
 * and quantized floats saturate. NaN becomes 0 if the type has no NaN.
 */
export function encode(type: ElementType, value: number): number {
  if (type.name === 'f32') {
    singles[0] = value;
    return words[0]!;
  }
  if (type.kind === 'float') return encodeFloat(type, value);
  if (Number.isNaN(value)) return 0;
  const low = type.signed ? -(2 ** (type.bits - 1)) : 0;
  const high = type.signed ? 2 ** (type.bits - 1) - 1 : 2 ** type.bits - 1;
  const nearest = roundEven(Math.min(Math.max(value, low), high));
  return (nearest < 0 ? nearest + 2 ** type.bits : nearest) >>> 0;
}

function encodeFloat(type: ElementType, value: number): number {
  const { mantissa, bias } = type;
  const rest = 1 << (type.bits - 1);
  const sign = value < 0 || Object.is(value, -0) ? rest : 0;
  const size = Math.abs(value);
  if (Number.isNaN(value)) {
    if (!type.quant) return rest - 1;
    return (type.quant as FloatType).special === 'none' ? 0 : rest - 1;
  }
  if (type.quant && size >= valueRange(type.quant).max) return sign + largest(type);
  const infinity = ((1 << type.exponent) - 1) << mantissa;
  if (size === Number.POSITIVE_INFINITY) return sign + infinity;
  if (size === 0) return sign;
  doubles[0] = size;
  const power = Math.max(((words[1]! >>> 20) & 2047) - 1023, 1 - bias);
  const units = roundEven(size * powers[mantissa - power + 1074]!);
  const code = ((power + bias - 1) << mantissa) + units;
  return sign + (type.quant ? Math.min(code, largest(type)) : Math.min(code, infinity));
}

function largest(type: ElementType): number {
  const table = decodeTable(type);
  let code = 2 ** (type.bits - 1) - 1;
  while (!Number.isFinite(table[code]!)) code--;
  return code;
}

function roundEven(value: number): number {
  const floor = Math.floor(value);
  const rest = value - floor;
  return rest < 0.5 || (rest === 0.5 && floor % 2 === 0) ? floor : floor + 1;
}
