import type { BosMode } from '../../calibrate/prefix.js';
import { notTaken, oneOf } from '../../core/error.js';

/** Parses an option's number, of which `expected` says which it may be. Throws LPQ_USAGE naming the option. */
export function number(flag: string, expected = 'a number'): (text: string) => number {
  return (text) => {
    const value = text.trim() === '' ? Number.NaN : Number(text);
    if (Number.isFinite(value)) return value;
    throw notTaken(flag, text, expected);
  };
}

/** The same for an integer from `least` to `most`. */
export function integer(flag: string, least: number, most = Number.MAX_SAFE_INTEGER): (text: string) => number {
  return (text) => {
    const value = text.trim() === '' ? Number.NaN : Number(text);
    if (Number.isSafeInteger(value) && value >= least && value <= most) return value;
    const upTo = most < Number.MAX_SAFE_INTEGER ? `from ${least} to ${most}` : `of at least ${least}`;
    throw notTaken(flag, text, `an integer ${upTo}`);
  };
}

/** The values of an option that may be given again. */
export function collect(text: string, before: readonly string[] = []): string[] {
  return [...before, text];
}

/** --group-size: a number, or 'channel'. Anything else is left for the settings to refuse. */
export function groupSize(text: string): number | string {
  return /^\d+$/.test(text) ? Number(text) : text;
}

/** What --bos says of itself. */
export const BOS_OPTION = 'whether texts begin with the bos token: auto (as the tokenizer does it), always or never';

/** --bos. */
export const bosMode = (text: string): BosMode => oneOf('--bos', ['auto', 'always', 'never'], text);
