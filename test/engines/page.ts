import { FORMATS } from './cells.js';
import type { Column } from './device.js';
import { ENGINES } from './engines.js';
import type { Cell } from './run.js';

const [FROM, TO] = ['<!-- table -->', '<!-- end of table -->'];

const COMPUTED: Readonly<Record<string, string>> = { float32: 'f32', bfloat16: 'bf16', int8: '8-bit inputs' };

function told(cell: Cell, notes: string[]): string {
  const text = cell.perplexity ? `; perplexity ${cell.perplexity[0]} / ${cell.perplexity[1]}` : '';
  if (cell.outcome === 'ran') return `ran, ${cell.off} (${COMPUTED[cell.dtype!]})${text}`;
  if (cell.outcome === 'loader ran') return 'ran';
  const sentence = cell.avx512 === false ? `${cell.sentence} (on a processor without AVX-512)` : cell.sentence!;
  if (!notes.includes(sentence)) notes.push(sentence);
  return `${cell.outcome} ${notes.indexOf(sentence) + 1}`;
}

/** The page with its table made again: a row a format, a column an engine, those of a device last; sentences of refusals below. */
export function pageWith(cells: Record<string, Record<string, Cell>>, device: readonly Column[], text: string): string {
  const notes: string[] = [];
  const columns = [...ENGINES.map(({ name }) => ({ name, cells: cells[name] ?? {} })), ...device];
  const known = FORMATS.map(({ name }) => name);
  const more = new Set(device.flatMap((column) => Object.keys(column.cells)).filter((name) => !known.includes(name)));
  // llama.cpp's many rows stand last.
  const blocks = FORMATS.findIndex(({ target }) => target.startsWith('gguf'));
  const rows = [...known.slice(0, blocks), ...more, ...known.slice(blocks)].map((name) => {
    const of = columns.map((column) => column.cells[name]);
    return `| ${[name, ...of.map((cell) => (cell ? told(cell, notes) : ''))].join(' | ')} |`;
  });
  const head = `| format | ${columns.map(({ name }) => name).join(' | ')} |\n|${'-|'.repeat(columns.length + 1)}`;
  // Pages wrap at 140 columns; what engines print is cut there.
  const list = notes.map((sentence, i) => `${i + 1}. \`${sentence.replaceAll('`', "'").slice(0, 130)}\``);
  const made = [FROM, head, ...rows, '', ...list, TO].join('\n');
  const [before, after] = [text.indexOf(FROM), text.indexOf(TO)];
  if (before < 0 || after < before) throw new Error(`the page has no ${FROM} before ${TO}`);
  return text.slice(0, before) + made + text.slice(after + TO.length);
}
