import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { KV_FORMS } from '../formats/kv/forms.js';
import { METHODS } from '../src/cli/quantize/methods.js';
import { PACK_LAYOUTS } from '../src/pack/layouts/index.js';
import { PACK_TARGETS } from '../src/pack/targets/index.js';
import { LAYOUTS } from '../src/verify/layouts/index.js';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..');

const DESCRIBED = [...PACK_LAYOUTS, ...LAYOUTS, ...PACK_TARGETS, ...METHODS];
const NAMES = new Set([...DESCRIBED.map(({ name }) => name), ...Object.keys(KV_FORMS)]);

/** Where layouts, targets and the file formats that some are called after say what they are. */
const DESCRIPTORS: readonly RegExp[] = [
  /^src\/(pack|verify)\/(layouts|targets)\//,
  /^src\/model\/kernels\//,
  /^src\/pack\/gguf\//,
  /^src\/verify\/gguf[-\w]*\.ts$/,
  /^formats\/(gptq|awq|compressed-tensors|gguf)\//,
];

/** Code that asks whether something has a name: comparisons, cases, prefixes, lists and tables of names. */
function comparisons(text: string): string[] {
  const code = text.replace(/\/\*[\s\S]*?\*\//g, '').replace(/^\s*\/\/.*$/gm, '');
  const quoted = "'([\\w-]+)'";
  const exact = [`[!=]==? *${quoted}`, `${quoted} *[!=]==?`, `\\bcase ${quoted}:`].map((each) => new RegExp(each, 'g'));
  const found = exact.flatMap((pattern) => [...code.matchAll(pattern)]).filter(([, name]) => NAMES.has(name as string));
  const parts = [...code.matchAll(/\.(?:starts|ends)With\('([\w-]{3,})'\)/g)].filter(([call, part]) =>
    [...NAMES].some((name) =>
      call.includes('starts') ? name.startsWith(part as string) : name.endsWith(part as string),
    ),
  );
  const tables = /\[[^[\]]*\]\s*\.includes\(|\{[^{}]*\}\[\w/g;
  const lists = [...code.matchAll(tables)].filter(([list]) =>
    [...list.matchAll(/'([\w-]+)'|\b(\w+):/g)].some(([, text, key]) => NAMES.has((text ?? key) as string)),
  );
  return [...found, ...parts, ...lists].map(([match]) => match);
}

test('no name of a layout, target, cache or method is compared outside what describes it', () => {
  const found: string[] = [];
  for (const dir of ['src', 'formats', 'native', 'bench'])
    for (const entry of readdirSync(path.join(root, dir), { recursive: true, withFileTypes: true })) {
      if (!entry.isFile() || !entry.name.endsWith('.ts')) continue;
      const file = path.relative(root, path.join(entry.parentPath, entry.name));
      if (DESCRIPTORS.some((place) => place.test(file))) continue;
      found.push(...comparisons(readFileSync(path.join(root, file), 'utf8')).map((each) => `${file}: ${each}`));
    }
  assert.deepEqual(found, []);
});

test('comparisons are found in whatever form', () => {
  const text = `
    // layout === 'tilus'
    if (layout === 'tilus' || 'marlin' !== layout || other === 'none') return;
    switch (target) { case 'awq': case 'some': }
    return target.startsWith('compressed') || target.endsWith('_sm70') || ['gptq', 'x'].includes(method) || { gptq: 1 }[method];`;
  assert.deepEqual(comparisons(text), [
    "=== 'tilus'",
    "'marlin' !==",
    "case 'awq':",
    ".startsWith('compressed')",
    ".endsWith('_sm70')",
    "['gptq', 'x'].includes(",
    '{ gptq: 1 }[m',
  ]);
});
