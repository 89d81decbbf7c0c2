import type { ElementType } from '../types.js';
import type { Helper } from './helpers.js';

/** A function that casts what stands in a thread's words, and what it calls. `per`: elements that one call makes. */
export interface CastFunction {
  readonly name: string;
  readonly per: 1 | 2 | 4;
  readonly text: string;
  readonly helpers: readonly Helper[];
}

const hex = (value: number): string => `0x${(value >>> 0).toString(16).padStart(8, '0')}u`;
/** A half-word in both halves. */
const twice = (half: number): string => hex(half * 0x10001);
const mask = (bits: number): number => 2 ** bits - 1;
const f16Power = (power: number): number => (power >= -14 ? (power + 15) << 10 : 1 << (power + 24));
const bf16Power = (power: number): number => (power + 127) << 7;

const HEAD = 'template <int W>\n__device__ __forceinline__';

/**
 * Converts codes of at most 8 bits, one after another in a thread's words, to numbers: by shifts, LOP3 and PRMT (Tilus, section 7.2), two
 * per word for f16 and bf16, four for i8. Undefined if there is no such cast.
 */
export function castFunction(from: ElementType, to: ElementType): CastFunction | undefined {
  if (to.name === 'f16' || to.name === 'bf16') return pairCast(from, to.name === 'bf16');
  if (to.name === 'f32') return single(from);
  if (to.name === 'i32' && from.kind === 'int') return integer(from);
  if (to.name === 'i8' && from.kind === 'int' && (from.signed || from.bits < 8)) return bytes(from);
  return undefined;
}

/** The two codes from bit 2 B pair on, each at the bottom of a half-word. */
function spread(bits: number, given: boolean): string[] {
  if (given) return [];
  const at = `bits_at(q, ${2 * bits} * pair, ${2 * bits})`;
  if (bits === 8) return [`const uint32_t x = __byte_perm(${at}, 0, 0x4140);`];
  const [low, high] = [hex(mask(bits)), hex(mask(bits) * 2 ** 16)];
  return [`const uint32_t codes = ${at};`, `const uint32_t x = (codes & ${low}) | (codes << ${16 - bits} & ${high});`];
}

function pairCast(from: ElementType, bf16: boolean): CastFunction {
  const name = `${from.name}_to_${bf16 ? 'bf16x2' : 'f16x2'}`;
  const body = from.kind === 'int' ? integerPair(from, bf16, false) : floatPair(from, bf16, false);
  const text = `// Codes 2 pair and 2 pair + 1 of ${from.name} as ${bf16 ? 'bf16' : 'f16'}.\n${HEAD} uint32_t ${name}(const uint32_t (&q)[W], int pair) {\n  ${body.join('\n  ')}\n}\n`;
  return { name, per: 2, text, helpers: ['bits_at', ...halfHelper(body)] };
}

/** The same of two codes that stand at the bottom of both halves of a word. */
export function givenPairCast(from: ElementType, bf16: boolean): CastFunction {
  const name = `${from.name}_pair_to_${bf16 ? 'bf16x2' : 'f16x2'}`;
  const body = from.kind === 'int' ? integerPair(from, bf16, true) : floatPair(from, bf16, true);
  const text = `// Two codes of ${from.name}, each at the bottom of a half of x, as ${bf16 ? 'bf16' : 'f16'}.\n__device__ __forceinline__ uint32_t ${name}(uint32_t x) {\n  ${body.join('\n  ')}\n}\n`;
  return { name, per: 2, text, helpers: ['bits_at', ...halfHelper(body)] };
}

const halfHelper = (body: readonly string[]): Helper[] =>
  body.some((line) => line.includes('half_to_float')) ? ['half_to_float'] : [];

/** The code or-ed into the mantissa of 1024 (f16) or 128 (bf16); signed ones with the sign flipped, which adds 2^(B-1). */
function integerPair({ bits, signed }: ElementType, bf16: boolean, given: boolean): string[] {
  const half = signed ? 2 ** (bits - 1) : 0;
  if (!bf16) {
    // PRMT puts bytes where 1024 has its lower ones.
    const bytes = bits === 8 && !given;
    const put = bytes
      ? ['const uint32_t x = __byte_perm(bits_at(q, 16 * pair, 16), 0x64646464u, 0x4140);']
      : spread(bits, given);
    const flip = twice(half + (bytes ? 0 : 0x6400));
    return [...put, `return sub_f16x2(x${flip === twice(0) ? '' : ` ^ ${flip}`}, ${twice((25 << 10) + half)});`];
  }
  if (bits < 8) {
    const least = 0x8000 + (134 << 7) + half;
    return [
      ...spread(bits, given),
      `return fma_x2<true>(x ^ ${twice(0x4300 + half)}, ${twice(0x3f80)}, ${twice(least)});`,
    ];
  }
  const number = (shift: number): string =>
    signed
      ? `static_cast<float>(static_cast<int>(x << ${24 - shift}) >> 24)`
      : `static_cast<float>(x >> ${shift} & 255)`;
  const both = `return cvt_x2<true>(${number(0)}, ${number(given ? 16 : 8)});`;
  return given ? [both] : ['const uint32_t x = bits_at(q, 16 * pair, 16);', both];
}

/** Sign and the rest put where f16 or bf16 have theirs, then a multiplication by a power of two, which is exact. */
function floatPair(from: ElementType, bf16: boolean, given: boolean): string[] {
  const { bits, exponent, mantissa, bias, name } = from;
  const codes = spread(bits, given);
  if (name === 'f8e5m2') {
    // f16 with the lower half of its mantissa 0.
    const half = given
      ? 'const uint32_t half = x << 8;'
      : 'const uint32_t half = __byte_perm(bits_at(q, 16 * pair, 16), 0, 0x1404);';
    const floats = 'half_to_float<false>(half), half_to_float<false>(half >> 16)';
    return [half, bf16 ? `return cvt_x2<true>(${floats});` : 'return half;'];
  }
  // f16 has no number at its highest exponent, which types with five exponent bits and more reach.
  if (!bf16 && exponent >= 5)
    return [...codes, `return cvt_x2<false>(${floatOf(from, 'x')}, ${floatOf(from, 'x >> 16')});`];
  const low = (bf16 ? 7 : 10) - mantissa;
  const rest = twice(mask(bits - 1) * 2 ** low);
  const moved = low === 0 ? `(x & ${rest})` : `(x << ${low} & ${rest})`;
  const lines = [...codes, `const uint32_t number = (x << ${16 - bits} & ${twice(0x8000)}) | ${moved};`];
  const power = (bf16 ? 127 : 15) - bias;
  const product = bf16
    ? `fma_x2<true>(number, ${twice(bf16Power(power))}, ${twice(0x8000)})`
    : `mul_x2<false>(number, ${twice(f16Power(power))})`;
  if (name !== 'f8e4m3') return [...lines, `return ${product};`];
  // All ones are NaN: adding 1 carries into the bit above.
  lines.push(`const uint32_t nan = ((number & ${rest}) + ${twice(2 ** low)}) >> ${low + 7} & ${twice(1)};`);
  return [...lines, `return ${product} | nan * 0x7fffu;`];
}

/** A float of the code in the low bits of `x`, for types without infinities. */
function floatOf({ bits, mantissa, bias }: ElementType, x: string): string {
  const rest = `(${x}) & ${mask(bits - 1)}u`;
  return `__fmul_rn(__uint_as_float(((${x}) >> ${bits - 1} & 1u) << 31 | (${rest}) << ${23 - mantissa}), ${powerText(127 - bias)})`;
}

const powerText = (power: number): string => `__uint_as_float(${hex((power + 127) * 2 ** 23)})`;

function single(from: ElementType): CastFunction {
  const { bits, signed, kind, name } = from;
  const x = `const uint32_t x = bits_at(q, ${bits} * i, ${bits}) & ${mask(bits)}u;`;
  const helpers: Helper[] = ['bits_at'];
  let body: string;
  if (kind === 'int')
    body = `${x}\n  return static_cast<float>(${signed ? `static_cast<int>(x << ${32 - bits}) >> ${32 - bits}` : 'x'});`;
  else if (name === 'f8e5m2') {
    helpers.push('half_to_float');
    body = `${x}\n  return half_to_float<false>(x << 8);`;
  } else if (name === 'f8e4m3')
    body = `${x}\n  if ((x & 127u) == 127u) return __uint_as_float(0x7fffffffu);\n  return ${floatOf(from, 'x')};`;
  else body = `${x}\n  return ${floatOf(from, 'x')};`;
  const text = `// Code i of ${name} as a float.\n${HEAD} float ${name}_to_f32(const uint32_t (&q)[W], int i) {\n  ${body}\n}\n`;
  return { name: `${name}_to_f32`, per: 1, text, helpers };
}

function integer(from: ElementType): CastFunction {
  const { bits, signed, name } = from;
  const x = `const uint32_t x = bits_at(q, ${bits} * i, ${bits}) & ${mask(bits)}u;`;
  const value = signed ? `static_cast<int>(x << ${32 - bits}) >> ${32 - bits}` : 'static_cast<int>(x)';
  const text = `// Code i of ${name} as an int.\n${HEAD} int ${name}_to_i32(const uint32_t (&q)[W], int i) {\n  ${x}\n  return ${value};\n}\n`;
  return { name: `${name}_to_i32`, per: 1, text, helpers: ['bits_at'] };
}

/** Four codes, each at the bottom of a byte; signed ones are flipped to codes + 2^(B-1) and brought back without borrowing. */
function bytes(from: ElementType): CastFunction {
  const { bits, signed, name } = from;
  const all = (byte: number): string => hex(byte * 0x01010101);
  const lines = [`const uint32_t x = bits_at(q, ${4 * bits} * quad, ${4 * bits});`];
  const pieces = [0, 1, 2, 3].map((i) => {
    const moved = 8 * i - bits * i;
    return `(${moved === 0 ? 'x' : `x << ${moved}`} & ${hex(mask(bits) * 2 ** (8 * i))})`;
  });
  lines.push(`const uint32_t codes = ${pieces.join(' | ')};`);
  if (!signed) lines.push('return codes;');
  else {
    const half = 2 ** (bits - 1);
    // (code ^ half) + (256 - half), byte by byte: the top bit is added without its carry.
    lines.push(`const uint32_t flipped = codes ^ ${all(half)};`);
    const add = 256 - half;
    lines.push(`return ((flipped & ${all(127)}) + ${all(add & 127)}) ^ (flipped & ${all(128)}) ^ ${all(add & 128)};`);
  }
  const body = bits === 8 ? 'return q[quad];' : lines.join('\n  ');
  const text = `// Codes 4 quad .. 4 quad + 3 of ${name} as i8.\n${HEAD} uint32_t ${name}_to_i8x4(const uint32_t (&q)[W], int quad) {\n  ${body}\n}\n`;
  return { name: `${name}_to_i8x4`, per: 4, text, helpers: ['bits_at'] };
}
