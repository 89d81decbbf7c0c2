/** What a stream may carry: colours only on a terminal, and never when NO_COLOR is set (no-color.org). */
export function colorOn(stream: NodeJS.WriteStream): boolean {
  const { NO_COLOR, TERM } = process.env;
  return stream.isTTY === true && (NO_COLOR === undefined || NO_COLOR === '') && TERM !== 'dumb';
}

const CODES = { red: [31, 39], yellow: [33, 39], green: [32, 39], dim: [2, 22], bold: [1, 22] } as const;

/** `text` in a colour, or as it is. */
export function paint(text: string, style: keyof typeof CODES, on: boolean): string {
  const [open, close] = CODES[style];
  return on ? `\x1b[${open}m${text}\x1b[${close}m` : text;
}
