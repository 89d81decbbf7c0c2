import type { BosMode } from '../../calibrate/prefix.js';
import { LpqError } from '../../core/error.js';

/** Parses an option's number. Throws LPQ_USAGE naming the option. */
export function number(flag: string): (text: string) => number {
  return (text) => {
    const value = text.trim() === '' ? Number.NaN : Number(text);
    if (Number.isFinite(value)) return value;
    throw new LpqError('LPQ_USAGE', `${flag} does not take '${text}'`, { got: text, expected: 'a number' });
  };
}

/** The same for an integer from `least` to `most`. */
export function integer(flag: string, least: number, most = Number.MAX_SAFE_INTEGER): (text: string) => number {
  return (text) => {
    const value = text.trim() === '' ? Number.NaN : Number(text);
    if (Number.isSafeInteger(value) && value >= least && value <= most) return value;
    throw new LpqError('LPQ_USAGE', `${flag} does not take '${text}'`, {
      got: text,
      expected:
        most < Number.MAX_SAFE_INTEGER ? `an integer from ${least} to ${most}` : `an integer of at least ${least}`,
    });
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
export const BOS_OPTION = 'whether texts begin with the bos token: auto (as the tokenizer has it), always or never';

/** --bos. */
export function bosMode(text: string): BosMode {
  if (text === 'auto' || text === 'always' || text === 'never') return text;
  throw new LpqError('LPQ_USAGE', `--bos does not take '${text}'`, { got: text, expected: 'auto, always or never' });
}
