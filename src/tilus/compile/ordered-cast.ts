import { localCount } from '../../layout/layout.js';
import type { RegisterTensor } from '../check/program.js';
import { castFunction, givenPairCast } from './casts.js';
import type { Unit } from './unit.js';

interface OrderedCast {
  readonly a: RegisterTensor;
  readonly out: RegisterTensor;
  readonly order: Int32Array;
  readonly text: string;
}

/**
 * Writes a Cast that reorders a thread's codes. One AND extracts a pair of codes that are 16 bits apart in a word, as MARLIN and TurboMind
 * order them. Returns a sentence with the reason if it cannot.
 */
export function writeOrderedCast(unit: Unit, { a, out, order, text }: OrderedCast): string | undefined {
  const { bits } = a.dtype;
  const half = out.dtype.name === 'f16' || out.dtype.name === 'bf16';
  const cast =
    bits > 8 ? undefined : half ? givenPairCast(a.dtype, out.dtype.name === 'bf16') : castFunction(a.dtype, out.dtype);
  if (!cast || cast.per === 4)
    return `there is no code that casts ${a.dtype.name} to ${out.dtype.name} in another order`;
  unit.functions.set(cast.name, cast.text);
  unit.use(...cast.helpers);
  unit.header('x2');
  unit.select(`cast ${a.dtype.name} to ${out.dtype.name}, ordered`);
  const to = unit.declare(out, text);
  const from = unit.name(a);
  const count = localCount(out.layout);
  for (let i = 0; i < count; i += cast.per) {
    const value = half
      ? pairText(from, order[i]! * bits, order[i + 1] === undefined ? undefined : order[i + 1]! * bits, bits)
      : `${from}, ${order[i]}`;
    unit.writer.line(`${to}[${i / cast.per}] = ${cast.name}(${value});`);
  }
  return undefined;
}

function pairText(name: string, low: number, high: number | undefined, bits: number): string {
  const mask = 2 ** bits - 1;
  const word = Math.floor(low / 32);
  const at = low % 32;
  if (high === low + 16 && at + 16 + bits <= 32)
    return `${name}[${word}]${at === 0 ? '' : ` >> ${at}`} & 0x${(mask * 0x10001).toString(16).padStart(8, '0')}u`;
  const one = (bit: number): string => `(bits_at(${name}, ${bit}, ${bits}) & ${mask}u)`;
  return high === undefined ? one(low) : `${one(low)} | ${one(high)} << 16`;
}
