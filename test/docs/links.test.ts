import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { ROOT } from '../src/model/fixtures.js';

const read = (file: string) => readFileSync(path.join(ROOT, file), 'utf8');

/** Files below a directory whose names end in one of `ends`, by path from the root. */
function filesBelow(dir: string, ends: RegExp): string[] {
  return readdirSync(path.join(ROOT, dir), { recursive: true })
    .map((file) => path.join(dir, String(file)))
    .filter((file) => ends.test(file) && !/(^|\/)(node_modules|build)\//.test(file))
    .filter((file) => statSync(path.join(ROOT, file)).isFile());
}

const TEXT = /\.(ts|mjs|js|py|md|sh|ya?ml|json|h|c|cc|cpp|cu|cuh|inc|1)$/;
const TREES = ['bench', 'bin', 'docs', 'examples', 'formats', 'native', 'scripts', 'share', 'src', 'test'];
const TOP = readdirSync(ROOT).filter((file) => /\.(md|json)$|^Containerfile$/.test(file));
const pages = filesBelow('docs', /\.md$/);
const results = readdirSync(path.join(ROOT, 'bench', 'results'));

test('every path of docs/ that is named anywhere exists', () => {
  const files = [...TOP, ...TREES.flatMap((dir) => filesBelow(dir, TEXT))].filter(
    (file) => !/^bench\/results/.test(file),
  );
  const missing = files.flatMap((file) =>
    [...read(file).matchAll(/(?<![\w./-])docs\/[\w-]+(?:[\w./-]*\w)?/g)]
      .map(([name]) => name)
      // test/docs, and documentation of others, which docs/comparison.md cites
      .filter((name) => file !== 'docs/comparison.md' && !existsSync(path.join(ROOT, name)))
      .filter((name) => !existsSync(path.join(ROOT, 'test', name)))
      .map((name) => `${file}: ${name}`),
  );
  assert.deepEqual(missing, []);
});

test('every source file that a page or ARCHITECTURE.md names exists', () => {
  const missing = [...pages, 'ARCHITECTURE.md'].flatMap((page) =>
    [
      ...read(page).matchAll(
        /(?<![\w./-])(?:src|native|test|formats|scripts|examples)\/[\w./-]*\.(?:tsx?|mjs|py|h|c|cpp|cuh?|json|txt|md)\b/g,
      ),
    ]
      .map(([name]) => name)
      .filter((name) => !/NAME|\btoy/.test(name) && !existsSync(path.join(ROOT, name)))
      .map((name) => `${page}: ${name}`),
  );
  assert.deepEqual(missing, []);
});

test('links and pictures between pages lead somewhere, and docs/README.md to every page', () => {
  const linked = new Set(['docs/README.md']);
  for (const page of [...pages, 'README.md', 'ARCHITECTURE.md', 'CONTRIBUTING.md'])
    for (const [, to] of read(page).matchAll(/\]\(([^)#\s]+)(?:#[^)]*)?\)/g)) {
      if (/^https?:/.test(to!)) continue;
      const target = path.join(path.dirname(page), to!);
      assert.ok(existsSync(path.join(ROOT, target)), `${page} links to ${to}`);
      if (page === 'docs/README.md') linked.add(target);
    }
  assert.deepEqual(
    pages.filter((page) => !linked.has(page)),
    [],
  );
  assert.match(read('README.md'), /docs\/README\.md/);
});

test('no page has more than 300 lines, nor prose of more than 150 columns', () => {
  for (const page of pages) {
    const lines = read(page).split('\n');
    assert.ok(lines.length <= 301, `${page} has ${lines.length} lines`);
    let code = false;
    for (const [i, line] of lines.entries()) {
      if (line.startsWith('```')) code = !code;
      const wide = [...line].length > 150 && !code && !/^\s*\||^ {4}|^!?\[|https?:/.test(line);
      assert.ok(!wide, `${page}:${i + 1} has ${line.length} columns`);
    }
  }
});

test('pages say how things are, and not how they came to be', () => {
  const story =
    /\b(asked|tried|at first|used to be|was found|turned out|bars? of|sessions?|until 20\d\d|since then)\b/i;
  // Dates stand in the names of results and fixtures, and where docs/comparison.md says when its sources were read.
  const date = /\b20\d\d-\d\d-\d\d(?!-[\w-]+\.json)/;
  const found = [...pages, 'README.md', 'ARCHITECTURE.md', 'CONTRIBUTING.md'].flatMap((page) =>
    read(page)
      .replace(/```[\s\S]*?```/g, (block) => block.replace(/[^\n]/g, ''))
      .split('\n')
      .map((line, i) => ({ line, at: `${page}:${i + 1}` }))
      .filter(({ line }) => story.test(line) || (page !== 'docs/comparison.md' && date.test(line)))
      .map(({ line, at }) => `${at}: ${(story.exec(line) ?? date.exec(line))![0]}`),
  );
  assert.deepEqual(found, []);
});

test('every result of bench/results is cited by a page, and every one cited is there', () => {
  const cited = new Set<string>();
  for (const page of pages) for (const [name] of read(page).matchAll(/20\d\d-\d\d-\d\d-[\w-]+\.json/g)) cited.add(name);
  const fixtures = readdirSync(path.join(ROOT, 'test', 'fixtures'));
  assert.deepEqual(
    results.filter((file) => !cited.has(file)),
    [],
    'cited by no page',
  );
  assert.deepEqual(
    [...cited].filter((name) => !results.includes(name) && !fixtures.some((file) => file.endsWith(name))),
    [],
    'cited and not there',
  );
});
