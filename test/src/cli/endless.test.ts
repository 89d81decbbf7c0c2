import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { scratch } from '../../formats/scratch.js';
import { BAIT, catastrophic } from '../calibrate/confined/hostile.js';

const dir = scratch();
const LPQ = fileURLToPath(new URL('../../../../bin/lpq.js', import.meta.url));
const hostile = catastrophic(path.join(dir, 'hostile'));
const text = path.join(dir, 'text.txt');
writeFileSync(text, BAIT.repeat(2000));

/** Seconds of processor time of the processes that `pid` started. */
function used(pid: number): number {
  const children = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ').filter(Boolean);
  return children.reduce((sum, child) => {
    const stat = readFileSync(`/proc/${child}/stat`, 'latin1');
    return sum + Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[11]) / 100;
  }, 0);
}

for (const [signal, args] of [
  [
    'SIGINT',
    [
      'quantize',
      hostile,
      '-o',
      path.join(dir, 'out'),
      '--method',
      'gptq',
      '--calib',
      text,
      '--bits',
      '4',
      '--device',
      'cpu',
    ],
  ],
  ['SIGTERM', ['eval', hostile, '--text', text, '--ctx', '16', '--device', 'cpu']],
  ['SIGINT', ['generate', hostile, '--prompt', BAIT, '--device', 'cpu']],
] as const)
  test(`${signal} ends lpq ${args[0]} while a tokenizer runs for ever`, async () => {
    const child = spawn(process.execPath, [LPQ, ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
    let stderr = '';
    child.stderr.on('data', (data) => (stderr += data));
    const exit = new Promise<number | null>((resolve) => child.on('exit', resolve));
    let over = false;
    void exit.then(() => (over = true));
    // Opening this tokenizer takes a tenth of it.
    const pid = child.pid as number;
    while (!over && used(pid) < 1.5) await new Promise((resolve) => setTimeout(resolve, 50));
    const sent = performance.now();
    child.kill(signal);
    assert.equal(await exit, 130, stderr);
    // It would leave by force after five seconds.
    assert.ok(performance.now() - sent < 4500, `${performance.now() - sent} ms`);
    assert.match(stderr, /LPQ_ABORTED/);
    assert.ok(!existsSync(path.join(dir, 'out')));
  });
