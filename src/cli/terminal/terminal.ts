import { randomBytes } from 'node:crypto';
import { oneLine, visible } from '../../core/visible.js';

/** What a stream may carry: colours only on a terminal, and never when NO_COLOR is set (no-color.org). */
export function colorOn(stream: NodeJS.WriteStream): boolean {
  const { NO_COLOR, TERM } = process.env;
  return stream.isTTY === true && (NO_COLOR === undefined || NO_COLOR === '') && TERM !== 'dumb';
}

const CODES = { red: [31, 39], yellow: [33, 39], green: [32, 39], dim: [2, 22], bold: [1, 22] } as const;

/** Stands for ESC in what paint() makes, until it is written. New in every process, so that no file can hold it. */
const KEY = `\x1b{${randomBytes(12).toString('hex')}}`;

/** `text` in a colour, or as it is. Only what passes through terminalText() shows the colour. */
export function paint(text: string, style: keyof typeof CODES, on: boolean): string {
  const [open, close] = CODES[style];
  return on ? `${KEY}[${open}m${text}${KEY}[${close}m` : text;
}

/** What may be written to a stream: paint()'s colours, and everything else with its control characters spelled out. */
export function terminalText(text: string): string {
  return text.split(KEY).map(visible).join('\x1b');
}

/** A line or more of a result: what stands in it, from a file or not, cannot begin a line of its own. paint()'s colours may stand in it. */
export function line(fixed: TemplateStringsArray, ...values: readonly unknown[]): string {
  const safe = (value: unknown) => String(value).split(KEY).map(oneLine).join(KEY);
  return fixed.map((text, i) => (i < values.length ? `${text}${safe(values[i])}` : text)).join('');
}
