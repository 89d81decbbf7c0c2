import { localCount } from '../../layout/layout.js';
import { pairs } from '../check/pairs.js';
import type { Arithmetic, RegisterTensor } from '../check/program.js';
import { castFunction } from './casts.js';
import { storage, type Unit, wordsOf } from './unit.js';

type Unary = { readonly a: RegisterTensor; readonly out: RegisterTensor; readonly text: string };

const isHalf = (tensor: RegisterTensor): boolean => tensor.dtype.name === 'f16' || tensor.dtype.name === 'bf16';

/** Writes a Cast. Returns the sentence why it cannot. */
export function writeCast(unit: Unit, { a, out, text }: Unary): string | undefined {
  const { writer } = unit;
  if (a.dtype === out.dtype) {
    copyRegisters(unit, a, out, text);
    return undefined;
  }
  const from = unit.name(a);
  const count = localCount(a.layout);
  const cast = a.dtype.bits <= 8 ? castFunction(a.dtype, out.dtype) : undefined;
  if (cast) {
    unit.functions.set(cast.name, cast.text);
    unit.use(...cast.helpers);
    unit.header('x2');
    unit.select(`cast ${a.dtype.name} to ${out.dtype.name}`);
    const to = unit.declare(out, text);
    writer.loop('i', Math.ceil(count / cast.per), () => writer.line(`${to}[i] = ${cast.name}(${from}, i);`));
    return undefined;
  }
  unit.header('x2');
  if (a.dtype.name === 'f32' && isHalf(out)) {
    const to = unit.declare(out, text);
    const bf = out.dtype.name === 'bf16';
    for (let i = 0; i < count; i += 2)
      writer.line(`${to}[${i / 2}] = cvt_x2<${bf}>(${from}[${i}], ${i + 1 < count ? `${from}[${i + 1}]` : '0.0f'});`);
    return undefined;
  }
  if (isHalf(a) && (out.dtype.name === 'f32' || isHalf(out))) {
    unit.use('half_to_float');
    const to = unit.declare(out, text);
    const number = (i: number): string =>
      `half_to_float<${a.dtype.name === 'bf16'}>(${from}[${Math.floor(i / 2)}]${i % 2 ? ' >> 16' : ''})`;
    if (out.dtype.name === 'f32') for (let i = 0; i < count; i++) writer.line(`${to}[${i}] = ${number(i)};`);
    else
      for (let i = 0; i < count; i += 2)
        writer.line(`${to}[${i / 2}] = cvt_x2<${out.dtype.name === 'bf16'}>(${number(i)}, ${number(i + 1)});`);
    return undefined;
  }
  if (a.dtype.name === 'i32' && out.dtype.name === 'f32') {
    const to = unit.declare(out, text);
    writer.loop('i', count, () => writer.line(`${to}[i] = static_cast<float>(${from}[i]);`));
    return undefined;
  }
  return `there is no code that casts ${a.dtype.name} to ${out.dtype.name}`;
}

/** Writes a View: another name of the same registers, or where floats meet words a copy that costs nothing. */
export function writeView(unit: Unit, { a, out, text }: Unary): void {
  copyRegisters(unit, a, out, text);
}

function copyRegisters(unit: Unit, a: RegisterTensor, out: RegisterTensor, text: string): void {
  if (storage(a) === storage(out) && unit.once(a) && unit.once(out)) {
    unit.alias(out, a, text);
    return;
  }
  const to = unit.declare(out, text);
  if (to !== unit.name(a)) unit.writer.line(`static_assert(sizeof(${to}) == sizeof(${unit.name(a)}));`);
  unit.writer.line(`memcpy(${to}, ${unit.name(a)}, sizeof(${to}));`);
}

/** Writes AllocateRegister. */
export function writeInit(unit: Unit, { out, text }: Omit<Unary, 'a'>, value: string | undefined, bits: number): void {
  const name = unit.declare(out, text);
  if (value === undefined) return;
  if (storage(out) !== 'uint32_t') {
    unit.writer.loop('i', wordsOf(out), () => unit.writer.line(`${name}[i] = ${value};`));
    return;
  }
  // The pattern again and again, cut into words.
  const width = out.dtype.bits;
  for (let word = 0; word < wordsOf(out); word++) {
    let filled = 0;
    for (let bit = 0; bit < 32; bit++) filled += ((bits >>> ((word * 32 + bit) % width)) & 1) * 2 ** bit;
    unit.writer.line(`${name}[${word}] = 0x${filled.toString(16)}u;`);
  }
}

/** Writes Neg. */
export function writeNegate(unit: Unit, { a, out, text }: Unary): void {
  const [to, from] = [unit.declare(out, text), unit.name(a)];
  const value = isHalf(a)
    ? `${from}[i] ^ 0x80008000u`
    : storage(a) === 'int'
      ? `static_cast<int>(0u - static_cast<uint32_t>(${from}[i]))`
      : `-${from}[i]`;
  unit.writer.loop('i', wordsOf(a), () => unit.writer.line(`${to}[i] = ${value};`));
}

/** Writes Add, Sub, Mul, Div or Mod. Returns the sentence why it cannot. */
export function writeArithmetic(
  unit: Unit,
  node: Unary & { readonly op: Arithmetic; readonly b: RegisterTensor },
): string | undefined {
  const { a, b, out, text, op } = node;
  const of = pairs(a.layout, b.layout)!;
  const [x, y] = [unit.name(a), unit.name(b)];
  const to = unit.declare(out, text);
  unit.select(`${op} ${a.dtype.name}`);
  if (isHalf(a)) {
    unit.header('x2');
    if (op === 'Div') unit.use('half_to_float');
    for (let word = 0; word < wordsOf(a); word++) {
      const [low, high] = [of[2 * word]!, of[2 * word + 1] ?? of[2 * word]!];
      unit.writer.line(
        `${to}[${word}] = ${halves(op, `${x}[${word}]`, pairText(y, low, high), a.dtype.name === 'bf16')};`,
      );
    }
    return undefined;
  }
  const same = of.every((at, i) => at === i);
  const element = (i: string, j: string): string =>
    storage(a) === 'float' ? floats(op, `${x}[${i}]`, `${y}[${j}]`) : ints(op, `${x}[${i}]`, `${y}[${j}]`);
  if (same) unit.writer.loop('i', of.length, () => unit.writer.line(`${to}[i] = ${element('i', 'i')};`));
  else for (const [i, at] of of.entries()) unit.writer.line(`${to}[${i}] = ${element(String(i), String(at))};`);
  return undefined;
}

/** Halves `low` and `high` of an array of pairs as one word. */
function pairText(name: string, low: number, high: number): string {
  const [w, v] = [Math.floor(low / 2), Math.floor(high / 2)];
  if (w === v && low % 2 === 0 && high % 2 === 1) return `${name}[${w}]`;
  if (low === high) return `${low % 2 === 0 ? 'lower' : 'upper'}_twice(${name}[${w}])`;
  const selector = (low % 2 === 0 ? 0x10 : 0x32) + (high % 2 === 0 ? 0x5400 : 0x7600);
  return `__byte_perm(${name}[${w}], ${name}[${v}], 0x${selector.toString(16)})`;
}

/** Of two pairs; bf16 has fma alone on sm_80. */
function halves(op: Arithmetic, x: string, y: string, bf16: boolean): string {
  switch (op) {
    case 'Add':
      return bf16 ? `fma_x2<true>(${x}, 0x3f803f80u, ${y})` : `add_x2<false>(${x}, ${y})`;
    case 'Sub':
      return bf16 ? `fma_x2<true>(${y}, 0xbf80bf80u, ${x})` : `sub_f16x2(${x}, ${y})`;
    case 'Mul':
      return bf16 ? `fma_x2<true>(${x}, ${y}, 0x80008000u)` : `mul_x2<false>(${x}, ${y})`;
    default: {
      const half = (word: string, shift: string): string => `half_to_float<${bf16}>(${word}${shift})`;
      const part = (shift: string): string => `__fdiv_rn(${half(x, shift)}, ${half(y, shift)})`;
      return `cvt_x2<${bf16}>(${part('')}, ${part(' >> 16')})`;
    }
  }
}

/** With one rounding: the compiler would fuse plain products and sums. */
function floats(op: Arithmetic, x: string, y: string): string {
  if (op === 'Add') return `__fadd_rn(${x}, ${y})`;
  if (op === 'Sub') return `__fadd_rn(${x}, -${y})`;
  return op === 'Mul' ? `__fmul_rn(${x}, ${y})` : `__fdiv_rn(${x}, ${y})`;
}

/** Integers wrap. */
function ints(op: Arithmetic, x: string, y: string): string {
  if (op === 'Div') return `${x} / ${y}`;
  if (op === 'Mod') return `${x} % ${y}`;
  const sign = { Add: '+', Sub: '-', Mul: '*' }[op];
  return `static_cast<int>(static_cast<uint32_t>(${x}) ${sign} static_cast<uint32_t>(${y}))`;
}
