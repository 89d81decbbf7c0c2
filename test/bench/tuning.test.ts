import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import {
  type KernelTuning,
  losses,
  mergeTunings,
  readTuning,
  type TuningPoint,
  writeTuning,
} from '../../bench/kernels/tuning.js';
import { LpqError } from '../../src/core/error.js';

const dir = mkdtempSync(path.join(tmpdir(), 'lpq-tuning-'));
after(() => rmSync(dir, { recursive: true, force: true }));

const point = (m: number, bestUs: number): TuningPoint => ({
  layout: 'tilus',
  type: 'u4',
  activations: 'f16',
  group: 128,
  zeros: 'none',
  k: 4096,
  n: 4096,
  m,
  choiceUs: 10,
  bestUs,
  best: bestUs < 10 ? { kernel: 'stream', slices: 2 } : {},
});
const key = { device: 'NVIDIA H200', driver: 13000, lpq: '0.1.0' };
const tuning = (...points: TuningPoint[]): KernelTuning => ({
  format: 'lpq-kernel-tuning',
  version: 1,
  ...key,
  date: '2026-11-21',
  points,
});

test('a tuning is read as it was written, and leaves no other file behind', () => {
  const file = path.join(dir, 'new', 'a.json');
  const kept = tuning(point(1, 9), point(16, 10));
  writeTuning(file, kept);
  assert.deepEqual(readTuning(file, key), kept);
  assert.deepEqual(readdirSync(path.dirname(file)), ['a.json']);
});

test('points of the same product take the place of older ones', () => {
  const merged = mergeTunings(tuning(point(1, 9), point(16, 9)), tuning(point(16, 8), point(64, 10)));
  assert.deepEqual(
    merged.points.map(({ m, bestUs }) => [m, bestUs]),
    [
      [1, 9],
      [16, 8],
      [64, 10],
    ],
  );
  assert.equal(mergeTunings(undefined, tuning(point(1, 9))).points.length, 1);
});

test('where the choice loses more than 5 % is told, worst first', () => {
  const lost = losses([point(1, 9.6), point(2, 8), point(3, 10), point(4, 5)]);
  assert.deepEqual(
    lost.map(({ m, ratio }) => [m, ratio]),
    [
      [4, 2],
      [2, 1.25],
    ],
  );
});

test('a tuning that is malformed or of another machine is refused by name', () => {
  const file = path.join(dir, 'bad.json');
  const refuses = (text: string, says: RegExp, wanted = key, code = 'LPQ_KERNEL_TUNING') => {
    writeFileSync(file, text);
    assert.throws(
      () => readTuning(file, wanted),
      (error: unknown) => error instanceof LpqError && error.code === code && says.test(error.message),
      text,
    );
  };
  const good = tuning(point(1, 9));
  refuses('{', /not valid JSON/);
  refuses('{}', /holds no tuning/);
  refuses(JSON.stringify({ ...good, points: [{ ...point(1, 9), m: 0 }] }), /holds no tuning/);
  refuses(JSON.stringify({ ...good, points: [{ ...point(1, 9), group: 48 }] }), /holds no tuning/);
  refuses(JSON.stringify(good), /another device/, { ...key, device: 'NVIDIA H100' });
  refuses(JSON.stringify(good), /another driver/, { ...key, driver: 12080 });
  refuses(JSON.stringify(good), /another lpq/, { ...key, lpq: '9.9.9' });
  assert.throws(
    () => readTuning(path.join(dir, 'absent.json')),
    (error: unknown) => error instanceof LpqError && error.code === 'LPQ_FILE',
  );
});
