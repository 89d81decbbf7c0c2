/** Text as HTML or XML: nothing that a checkpoint is named by can become markup. */
export function escapeText(text: string): string {
  return text.replace(/[&<>"']/g, (char) => ENTITIES[char] as string).replace(CONTROL, '\ufffd');
}

const ENTITIES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
};

// Controls of the writing direction would show a name as another.
// biome-ignore lint/suspicious/noControlCharactersInRegex: neither HTML nor XML may hold them
const CONTROL = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069\p{Cs}\ufffe\uffff]/gu;

/** Text of more characters stands below its label, not beside it, on a narrow screen. */
const LONG = 60;

/** A table without the columns of which nothing is known. */
export function knownColumns(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const known = head.map((_, c) => c === 0 || rows.some((row) => row[c] !== '–'));
  const of = (cells: readonly string[]) => cells.filter((_, c) => known[c]);
  return htmlTable(of(head), rows.map(of));
}

/** A table; on a narrow screen each row becomes a block whose cells name their column. Numbers are set to the right. */
export function htmlTable(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const numeric = head.map((_, c) =>
    rows.every((row) => /^(–|[-+±]?[\d.,]+( ?[%×A-Za-z]*)?( ± .*)?)$/.test(row[c] ?? '')),
  );
  const style = (text: string, c: number) => (numeric[c] ? ' class="n"' : text.length > LONG ? ' class="long"' : '');
  const cell = (text: string, c: number) =>
    `<td data-label="${escapeText(head[c] as string)}"${style(text, c)}>${escapeText(text)}</td>`;
  // Two columns are a name and its value, which fit in one line on a phone, too.
  return [
    head.length === 2 ? '<table class="pairs"><thead><tr>' : '<table><thead><tr>',
    ...head.map((text, c) => `<th scope="col"${numeric[c] ? ' class="n"' : ''}>${escapeText(text)}</th>`),
    '</tr></thead><tbody>',
    ...rows.map((row) => `<tr>${row.map(cell).join('')}</tr>`),
    '</tbody></table>',
  ].join('');
}

/** 0.0012345 -> '0.00123'; null -> '–'. */
export function figure(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return '–';
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1e-4 && size < 1e6) return String(Number(value.toPrecision(digits)));
  return value.toExponential(digits - 1);
}

/** 2048 -> '2,048'; to the next whole number. */
export function countText(value: number | null): string {
  return value === null ? '–' : Math.round(value).toLocaleString('en');
}

/** '3.21 ± 0.04'; without an error the value alone. */
export function withError(value: number, error: number | null, digits = 4): string {
  return error === null ? figure(value, digits) : `${figure(value, digits)} ± ${figure(error, 2)}`;
}

/** Decimal units. */
export function byteCount(value: number | null): string {
  if (value === null) return '–';
  const unit = Math.min(4, Math.max(0, Math.floor(Math.log10(Math.max(1, value)) / 3)));
  return `${figure(value / 1000 ** unit)} ${['B', 'kB', 'MB', 'GB', 'TB'][unit]}`;
}

export function secondsText(value: number | null): string {
  if (value === null) return '–';
  if (value < 100) return `${figure(value)} s`;
  const minutes = Math.round(value / 60);
  return minutes < 120 ? `${minutes} min` : `${figure(value / 3600)} h`;
}
