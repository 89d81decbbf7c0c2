import { LpqError } from './error.js';
import { hintFor, type Meanings } from './names.js';

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

const FLOAT16 = '16-bit weights are those of the source; a recipe rule with skip leaves modules unquantized.';
const GGUF =
  'This is a type of GGUF: quantize with --bits 4, then lpq pack --target gguf-q4_k (or another gguf target).';
const NF4 =
  'lpq has no NF4: take --bits 4, which is more exact with the default method, or --dtype f4e2m1 for a float of 4 bits.';

/** What other tools call types. */
const MEANINGS: Meanings = {
  ...Object.fromEntries(
    [2, 3, 4, 5, 6, 7, 8].flatMap((bits) => [
      [`int${bits}`, `Use --dtype i${bits} (signed, symmetric), or --dtype u${bits} --asym.`],
      [`uint${bits}`, `Use --dtype u${bits}.`],
      [`w${bits}`, `Use --bits ${bits}.`],
      [`w${bits}a16`, `Use --bits ${bits}: activations stay in 16 bits.`],
    ]),
  ),
  ...Object.fromEntries(
    ['fp8', 'float8', 'f8', 'e4m3', 'fp8_e4m3fn'].map((name) => [name, 'Use --dtype f8e4m3 (or f8e5m2).']),
  ),
  ...Object.fromEntries(['e5m2', 'fp8_e5m2fn'].map((name) => [name, 'Use --dtype f8e5m2.'])),
  ...Object.fromEntries(
    ['fp4', 'float4', 'f4'].map((name) => [
      name,
      'Use --dtype f4e2m1, or mxfp4 or nvfp4 with the scales of these formats.',
    ]),
  ),
  ...Object.fromEntries(['fp6', 'f6'].map((name) => [name, 'Use --dtype f6e3m2 or f6e2m3.'])),
  ...Object.fromEntries(['nf4', 'nf3', 'nf2', 'bnb', 'bitsandbytes'].map((name) => [name, NF4])),
  ...Object.fromEntries(
    ['fp16', 'f16', 'bf16', 'float16', 'bfloat16', 'half', 'fp32', 'f32', 'none'].map((name) => [name, FLOAT16]),
  ),
  ...Object.fromEntries(
    ['q2_k', 'q3_k', 'q4_k', 'q4_k_m', 'q5_k', 'q6_k', 'q4_0', 'q8_0', 'gguf'].map((name) => [name, GGUF]),
  ),
};

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
    hint: hintFor(name, [...TYPES.keys()], MEANINGS) ?? 'Use for example --dtype i4, --dtype u3 or --dtype f6e3m2.',
  });
}

/** Whether a type with exactly this name exists. */
export function isQuantType(name: string): boolean {
  return TYPES.has(name);
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
