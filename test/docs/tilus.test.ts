import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { INSTRUCTIONS } from '../../src/tilus/check/instructions.js';
import { lpq, root, scratch } from '../src/cli/lpq.js';

const page = readFileSync(path.join(root, 'docs', 'tilus.md'), 'utf8');

test('docs/tilus.md: programs and commands give what the page shows', async (t) => {
  const dir = scratch(t);
  writeFileSync(path.join(dir, 'x.bin'), new Uint8Array(512));
  const blocks = [...page.matchAll(/^```(.*)\n([\s\S]*?)^```$/gm)].map(([, tag = '', text = '']) => ({ tag, text }));
  let commands = 0;
  for (const { tag, text } of blocks) {
    const file = /^tilus (\S+)$/.exec(tag)?.[1];
    if (file !== undefined) writeFileSync(path.join(dir, file), text);
    const command = /^\$ lpq (.*)\n([\s\S]*)$/.exec(text);
    if (!command) continue;
    const words = command[1]!
      .split(' ')
      .map((word) => word.replace(/\b(\w+\.(?:tilus|bin))/, (name) => path.join(dir, name)));
    const { stdout, stderr } = await lpq(words);
    assert.equal(`${stdout}${stderr}`.trim(), command[2]!.trim(), command[1]);
    commands++;
  }
  assert.equal(commands, 3);
});

test('docs/tilus.md names every instruction', () => {
  for (const name of Object.keys(INSTRUCTIONS)) assert.match(page, new RegExp(`\\b${name}\\b`), name);
});
