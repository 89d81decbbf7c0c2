// What scripts share that fill the figures of a page from bench/results.
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const END = '<!-- /figures -->';

/** A result by the name of its file; undefined if there is none. */
export function result(name) {
  const file = path.join(root, 'bench', 'results', name);
  return existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : undefined;
}

/** The newest result whose name, which begins with its date, matches; undefined if there is none. */
export const newest = (pattern) =>
  readdirSync(path.join(root, 'bench', 'results'))
    .filter((name) => pattern.test(name))
    .sort()
    .at(-1);

/** The page with `table` between the marks of `script`. */
export function fill(text, script, table) {
  const begin = `<!-- figures: ${script} -->`;
  const from = text.indexOf(begin);
  const to = text.indexOf(END, from);
  if (from < 0 || to < 0) throw new Error(`the page has no lines ${begin} and ${END}`);
  return `${text.slice(0, from + begin.length)}\n${table}\n${text.slice(to)}`;
}

/** Writes the page anew with its figures. */
export function fillFile(page, filled) {
  const file = path.join(root, page);
  writeFileSync(file, filled(readFileSync(file, 'utf8')));
}
