import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import { PACK_TARGETS } from '../../src/pack/targets/index.js';
import { ROOT } from '../src/model/fixtures.js';

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

test('the tutorial can be pasted: its commands do what it shows, in its order', async () => {
  const { tutorialSteps } = (await import(path.join(ROOT, 'scripts', 'release', 'tutorial.mjs'))) as {
    tutorialSteps(): { script: string; lines: string[]; status: number }[];
  };
  const dir = mkdtempSync(path.join(tmpdir(), 'lpq-tutorial-'));
  after(() => rmSync(dir, { recursive: true, force: true }));
  const [bin, home] = [path.join(dir, 'bin'), path.join(dir, 'home')];
  for (const each of [bin, home]) mkdirSync(each);
  // As npm installs it.
  symlinkSync(path.join(ROOT, 'bin', 'lpq.js'), path.join(bin, 'lpq'));
  symlinkSync(process.execPath, path.join(bin, 'node'));
  const env = { ...process.env, PATH: `${bin}:${process.env.PATH}`, LPQ_THREADS: '2', NO_COLOR: '1' };
  const steps = tutorialSteps();
  assert.ok(steps.length >= 12);
  assert.deepEqual(
    steps.map(({ status }) => status).filter((status) => status !== 0),
    [2, 1],
  );
  for (const { script, lines, status } of steps) {
    const ran = spawnSync('sh', ['-c', `exec 2>&1\n${script}`], { cwd: home, env, encoding: 'utf8' });
    assert.equal(ran.status, status, `${script}\n${ran.stdout}`);
    let at = 0;
    const output = ran.stdout.split('\n');
    for (const line of lines) {
      const next = output.findIndex((each, i) => i >= at && pattern(line).test(each));
      assert.ok(next >= 0, `${script} does not print '${line}':\n${ran.stdout}`);
      at = next + 1;
    }
  }
});

test('every target of lpq pack is on the page of targets, with where it comes from', () => {
  const targets = readFileSync(path.join(ROOT, 'docs', 'targets.md'), 'utf8');
  for (const { name } of PACK_TARGETS)
    assert.ok(targets.includes(`\`${name}\``) || /^gguf-q/.test(name), `docs/targets.md lacks ${name}`);
});
