import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { ROOT } from '../src/model/fixtures.js';
import { LAYOUT, TARGET } from '../src/pack/toy-files.js';
import { METHOD } from '../src/quantize/toy-files.js';

/** Pages that walk through what a test adds to a copy of the tree. */
const PAGES = [
  ['docs/write-a-quantizer.md', METHOD],
  ['docs/write-a-layout.md', [...LAYOUT, ...TARGET]],
] as const;

for (const [page, files] of PAGES)
  test(`the code of ${page} is what a test adds to the tree`, () => {
    const text = readFileSync(path.join(ROOT, page), 'utf8');
    const blocks = [...text.matchAll(/```ts\n([\s\S]*?)```/g)].map(([, block]) => block!.trimEnd());
    assert.ok(blocks.length >= 3);
    for (const block of blocks)
      assert.ok(
        files.some((file) => file.text.includes(block)),
        block,
      );
    // And it shows all but imports and helpers, in the order of the file.
    for (const { file } of files) if (!file.endsWith('index.ts')) assert.ok(text.includes(file), `${page}: ${file}`);
  });
