import assert from 'node:assert/strict';
import { test } from 'node:test';
import { lpq } from '../lpq.js';

test('lpq bench tilus refuses what no program computes', async () => {
  const cases: readonly (readonly [number, RegExp, ...string[]])[] = [
    [2, /^LPQ_USAGE {2}--program does not take 'sum'/, '--program', 'sum'],
    [2, /^LPQ_USAGE {2}the program hopper has one scale for each column/, '--program', 'hopper', '--group', '128'],
    [2, /^LPQ_USAGE {2}--group does not take '48'/, '--group', '48'],
    [2, /^LPQ_USAGE {2}programs are compiled for a CUDA device/, '--device', 'cpu'],
    [3, /^LPQ_DEVICE {2}--device cuda:99 is not available/, '--device', 'cuda:99'],
  ];
  for (const [code, message, ...words] of cases) {
    const ran = await lpq(['bench', 'tilus', ...words]);
    assert.equal(ran.code, code, words.join(' '));
    assert.match(ran.stderr, message);
  }
});
