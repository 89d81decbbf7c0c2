import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { chmodSync, cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import { PACK_TARGETS } from '../../src/pack/targets/index.js';
import { ROOT } from '../src/model/fixtures.js';

const page = readFileSync(path.join(ROOT, 'docs', 'tutorial.md'), 'utf8');

/** Commands of the page's `console` blocks, each with the lines that stand below it. */
function commands(): { command: string; lines: string[] }[] {
  const found: { command: string; lines: string[] }[] = [];
  for (const [, block] of page.matchAll(/```console\n([\s\S]*?)```/g))
    for (const line of (block as string).trimEnd().split('\n'))
      if (line.startsWith('$ ')) found.push({ command: line.slice(2), lines: [] });
      else found.at(-1)?.lines.push(line);
  return found;
}

/** A line of the page as an expression: `…` stands for anything. */
const pattern = (line: string) =>
  new RegExp(
    line
      .trim()
      .split('…')
      .map((part) =>
        part
          .trim()
          .replace(/[.*+?^${}()|[\]\\]/g, '\\$&')
          .replace(/ +/g, ' +'),
      )
      .join('.*'),
  );

test('the commands of the tutorial do what it shows, in its order', () => {
  const dir = mkdtempSync(path.join(tmpdir(), 'lpq-tutorial-'));
  after(() => rmSync(dir, { recursive: true, force: true }));
  const bin = path.join(dir, 'bin');
  mkdirSync(bin);
  writeFileSync(
    path.join(bin, 'lpq'),
    `#!/bin/sh\nexec "${process.execPath}" "${path.join(ROOT, 'bin', 'lpq.js')}" "$@"\n`,
  );
  chmodSync(path.join(bin, 'lpq'), 0o755);
  cpSync(path.join(ROOT, 'share', 'tiny-llama'), path.join(dir, 'model'), { recursive: true });
  const book = readFileSync(path.join(ROOT, 'share', 'text', 'books-valid.txt')).subarray(0, 6000);
  writeFileSync(path.join(dir, 'book.txt'), book);
  const list = commands();
  assert.ok(list.length >= 10);
  for (const { command, lines } of list) {
    assert.match(command, /^lpq [\w .,/=-]+$/);
    if (command.includes('broken')) {
      cpSync(path.join(dir, 'w4-marlin'), path.join(dir, 'broken'), { recursive: true });
      const file = path.join(dir, 'broken', 'model.safetensors');
      const bytes = readFileSync(file);
      assert.notEqual(bytes[1_500_000], 0x7f);
      bytes[1_500_000] = 0x7f;
      writeFileSync(file, bytes);
    }
    const env = { ...process.env, PATH: `${bin}:${process.env.PATH}`, LPQ_THREADS: '2', NO_COLOR: '1' };
    const ran = spawnSync('sh', ['-c', `${command} 2>&1`], { cwd: dir, env, encoding: 'utf8' });
    const said = ran.stdout;
    assert.equal(
      ran.status,
      command.includes('broken') ? 1 : command.includes('group-size 96') ? 2 : 0,
      `${command}\n${said}`,
    );
    let at = 0;
    const output = said.split('\n');
    for (const line of lines) {
      const next = output.findIndex((each, i) => i >= at && pattern(line).test(each));
      assert.ok(next >= 0, `${command} does not print '${line}':\n${said}`);
      at = next + 1;
    }
  }
});

test('every target of lpq pack is on the page of targets, with where it comes from', () => {
  const targets = readFileSync(path.join(ROOT, 'docs', 'targets.md'), 'utf8');
  for (const { name } of PACK_TARGETS)
    assert.ok(targets.includes(`\`${name}\``) || /^gguf-q/.test(name), `docs/targets.md lacks ${name}`);
});
