import type { Expr } from '../language/ast.js';

/** Lines of C++ and their indentation. */
export class Writer {
  private readonly lines: string[] = [];
  private depth = 1;

  line(text: string): void {
    const margin = text.startsWith('#pragma') || text === '' ? '' : '  '.repeat(this.depth);
    this.lines.push(`${margin}${text.startsWith('//') ? text : withoutZeros(text)}`);
  }
  /** `head {`, the lines of `inner`, `}`. */
  block(head: string, inner: () => void): void {
    this.line(head === '' ? '{' : `${head} {`);
    this.depth++;
    inner();
    this.depth--;
    this.line('}');
  }
  /** A loop that the compiler unrolls; for one iteration only the body, with 0 for the variable. */
  loop(variable: string, size: number, inner: () => void): void {
    this.line('#pragma unroll');
    this.block(`for (int ${variable} = 0; ${variable} < ${size}; ++${variable})`, inner);
  }
  toString(): string {
    return this.lines.map((line) => `${line}\n`).join('');
  }
}

/** What adds nothing is left out: shared + 0 + x, (a + 0). */
const withoutZeros = (text: string): string => text.replace(/ \+ 0(?= \+ |[),;\]])/g, '');

const OPERATORS: Readonly<Record<string, string>> = { and: '&&', or: '||' };
const LEVELS = [['||'], ['&&'], ['==', '!='], ['<', '<=', '>', '>='], ['+', '-'], ['*', '/', '%']];

/** An expression of scalars in C++. */
export function cpp(expr: Expr, above = 0): string {
  switch (expr.kind) {
    case 'number':
      return expr.real ? `${Number.isInteger(expr.value) ? expr.value.toFixed(1) : expr.value}f` : String(expr.value);
    case 'name':
      return cppName(expr.name);
    case 'unary':
      return `${expr.op === 'not' ? '!' : '-'}${cpp(expr.a, 7)}`;
    case 'call':
      return `${expr.name}(${expr.args.map((arg) => cpp(arg)).join(', ')})`;
    case 'binary': {
      const op = OPERATORS[expr.op] ?? expr.op;
      const level = LEVELS.findIndex((ops) => ops.includes(op)) + 1;
      const text = `${cpp(expr.a, level)} ${op} ${cpp(expr.b, level + 1)}`;
      return level < above ? `(${text})` : text;
    }
    default:
      throw new RangeError(`no C++ of ${expr.kind}`);
  }
}

const TAKEN = new Set(
  'auto bool break case char class const continue default do double else enum extern false float for goto if inline int long namespace new operator private public register return short signed sizeof static struct switch template this throw true typedef union unsigned using virtual void volatile while thread lane warp block shared workspace row column slice from to chunk min max i j k'.split(
    ' ',
  ),
);

/** A name of the program that means nothing else in the kernel. */
export const cppName = (name: string): string => (TAKEN.has(name) ? `${name}_` : name);

/** A constant and multiples of loop variables. */
export interface Affine {
  readonly constant: number;
  readonly terms: readonly { readonly name: string; readonly times: number }[];
}

/** `affine` as text, '' when it is 0. */
export function affineText({ constant, terms }: Affine, scale = 1): string {
  const parts = terms
    .filter((term) => term.times !== 0)
    .map(({ name, times }) => (times * scale === 1 ? name : `${times * scale} * ${name}`));
  if (constant !== 0) parts.push(String(constant * scale));
  return parts.join(' + ');
}

/** A multiple of a text, with brackets where it is more than a name. */
export const times = (factor: number | string, text: string): string =>
  String(factor) === '1' ? text : `${factor} * ${/^\w+$/.test(text) ? text : `(${text})`}`;

/** Parts of a sum as text; '0' of none. */
export const sum = (...parts: readonly string[]): string =>
  parts.filter((part) => part !== '' && part !== '0').join(' + ') || '0';

/**
 * A table over the values of a variable as a sum of its bits: table[v] = table[0] + the sum of times * (v >> from & mask). Undefined if
 * it is not such a sum. Sizes that are not powers of two are multiples of the whole variable.
 */
export function bitsText(name: string, table: ArrayLike<number>): string | undefined {
  const size = table.length;
  const at = (v: number): number => table[v]! - table[0]!;
  if (size === 1) return '';
  if ((size & (size - 1)) !== 0) {
    for (let v = 0; v < size; v++) if (at(v) !== v * at(1)) return undefined;
    return at(1) === 0 ? '' : at(1) === 1 ? name : `${at(1)} * ${name}`;
  }
  const bits = Math.log2(size);
  const weights = Array.from({ length: bits }, (_, bit) => at(1 << bit));
  for (let v = 0; v < size; v++)
    if (at(v) !== weights.reduce((all, weight, bit) => all + ((v >> bit) & 1) * weight, 0)) return undefined;
  const parts: string[] = [];
  for (let from = 0; from < bits; ) {
    let count = 1;
    while (from + count < bits && weights[from + count] === weights[from]! * 2 ** count) count++;
    const whole = from + count === bits;
    const shifted = from === 0 ? name : `${name} >> ${from}`;
    const digit = whole ? shifted : `${shifted} & ${2 ** count - 1}`;
    const weight = weights[from]!;
    if (weight !== 0) parts.push(weight === 1 ? `(${digit})` : `${weight} * (${digit})`);
    from += count;
  }
  return parts.join(' + ').replace(/\((\w+)\)/g, '$1');
}
