import { LpqError } from './error.js';

/** An integer of `bits` bits: u1-u8 holds 0 .. 2^bits-1, i2-i8 two's complement. */
export interface IntType {
  readonly kind: 'int';
  readonly name: string;
  readonly bits: number;
  readonly signed: boolean;
}

/**
 * A float of 1 sign, `exponent` and `mantissa` bits (1 + e + m = bits, 3..8), with subnormals.
 * bias = 2^(e-1)-1, and 0 for e = 1. `special` says which patterns are not numbers: none below 8 bits; `fn` (only the
 * all-ones pattern is NaN: f8e4m3, OCP); `ieee` (the top exponent is inf and NaN: f8e5m2).
 */
export interface FloatType {
  readonly kind: 'float';
  readonly name: string;
  readonly bits: number;
  readonly signed: true;
  readonly exponent: number;
  readonly mantissa: number;
  readonly bias: number;
  readonly special: 'none' | 'fn' | 'ieee';
}

export type QuantType = IntType | FloatType;

const TYPES: ReadonlyMap<string, QuantType> = new Map(
  [...integers(), ...floats()].map((type) => [type.name, Object.freeze(type)]),
);

/** All 36 types: u1-u8, i2-i8 and the 21 floats, unsigned first, narrow first. */
export const QUANT_TYPES: readonly QuantType[] = [...TYPES.values()];

/** The type called `name` (u4, i3, f6e3m2; also fp6_e3m2). Throws LPQ_TYPE with the list of names. */
export function quantType(name: string): QuantType {
  const type = TYPES.get(
    name
      .toLowerCase()
      .replace(/^fp(?=\d)/, 'f')
      .replace(/_/g, ''),
  );
  if (type) return type;
  throw new LpqError('LPQ_TYPE', `'${name}' is not a quantized type`, {
    got: name,
    expected: 'u1-u8, i2-i8, or a float fBeXmY of 3 to 8 bits with 1 + X + Y = B',
    hint: 'Use for example --dtype i4, --dtype u3 or --dtype f6e3m2.',
  });
}

/** The number that the bit pattern `code` stands for; NaN for patterns that are not finite numbers. */
export function decodeCode(type: QuantType, code: number): number {
  if (type.kind === 'int') return type.signed && code >= 2 ** (type.bits - 1) ? code - 2 ** type.bits : code;
  const { exponent, mantissa, bias } = type;
  const fraction = code & (2 ** mantissa - 1);
  const power = (code >> mantissa) & (2 ** exponent - 1);
  const top = power === 2 ** exponent - 1;
  if (type.special === 'ieee' && top) return Number.NaN;
  if (type.special === 'fn' && top && fraction === 2 ** mantissa - 1) return Number.NaN;
  const magnitude =
    power === 0 ? fraction * 2 ** (1 - bias - mantissa) : (2 ** mantissa + fraction) * 2 ** (power - bias - mantissa);
  return code >> (type.bits - 1) ? -magnitude : magnitude;
}

/** Smallest and largest finite value. */
export function valueRange(type: QuantType): { min: number; max: number } {
  if (type.kind === 'int')
    return type.signed
      ? { min: -(2 ** (type.bits - 1)), max: 2 ** (type.bits - 1) - 1 }
      : { min: 0, max: 2 ** type.bits - 1 };
  let code = 2 ** (type.bits - 1) - 1;
  while (Number.isNaN(decodeCode(type, code))) code--;
  const max = decodeCode(type, code);
  return { min: -max, max };
}

/** A type as the flat record that native operations take (native/ops.ts). */
export function typeParams(type: QuantType): Record<string, number | string> {
  return type.kind === 'int'
    ? { kind: 'int', bits: type.bits, signed: type.signed ? 1 : 0, exponent: 0, mantissa: 0, bias: 0, special: 'none' }
    : {
        kind: 'float',
        bits: type.bits,
        signed: 1,
        exponent: type.exponent,
        mantissa: type.mantissa,
        bias: type.bias,
        special: type.special,
      };
}

function integers(): IntType[] {
  const make = (signed: boolean, bits: number): IntType => ({
    kind: 'int',
    name: `${signed ? 'i' : 'u'}${bits}`,
    bits,
    signed,
  });
  return [
    ...[1, 2, 3, 4, 5, 6, 7, 8].map((bits) => make(false, bits)),
    ...[2, 3, 4, 5, 6, 7, 8].map((bits) => make(true, bits)),
  ];
}

function floats(): FloatType[] {
  const list: FloatType[] = [];
  for (let bits = 3; bits <= 8; bits++)
    for (let exponent = bits - 2; exponent >= 1; exponent--) {
      const mantissa = bits - 1 - exponent;
      const name = `f${bits}e${exponent}m${mantissa}`;
      const special = name === 'f8e4m3' ? 'fn' : name === 'f8e5m2' ? 'ieee' : 'none';
      const bias = exponent === 1 ? 0 : 2 ** (exponent - 1) - 1;
      list.push({ kind: 'float', name, bits, signed: true, exponent, mantissa, bias, special });
    }
  return list;
}
