import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { pathToFileURL } from 'node:url';
import { type SweepPoint, sweepSvg } from '../../bench/kernels/sweep.js';
import { ROOT } from '../src/model/fixtures.js';

const POINTS: readonly SweepPoint[] = [
  { m: 4096, us: 800, cublasUs: 760 },
  { m: 1, us: 14, cublasUs: 35 },
  { m: 129, us: 34, cublasUs: 41 },
];

test('a sweep stands alone, knows both themes, and keeps its marks inside', () => {
  const svg = sweepSvg('A <GPU> & more', 'of a test', POINTS, 0.8);
  const open: string[] = [];
  for (const [, close, name, self] of svg.matchAll(/<(\/?)([a-z]+)[^<>]*?(\/?)>/g)) {
    if (close) assert.equal(open.pop(), name);
    else if (!self) open.push(name as string);
  }
  assert.deepEqual(open, []);
  assert.ok(!/&(?!amp;|lt;|gt;|quot;)/.test(svg));
  assert.ok(!/<script|href|url\(|@import|NaN/.test(svg));
  assert.match(svg, /prefers-color-scheme: dark/);
  assert.match(svg, /A &lt;GPU&gt; &amp; more/);
  assert.match(svg, />M=129: 1\.21 times cuBLAS</);
  const marks = [...svg.matchAll(/<circle cx="([\d.]+)" cy="([\d.]+)"/g)];
  assert.equal(marks.length, 3 * 3 + 2); // two times and their quotient for each M, and the legend's
  for (const [, x, y] of marks) assert.ok(Number(x) >= 86 && Number(x) <= 860 && Number(y) >= 50 && Number(y) <= 580);
  // From left to right, whatever the order of the points was.
  const [line] = [...svg.matchAll(/<polyline points="([^"]+)"/g)].map(([, each]) => each!.split(' '));
  assert.deepEqual(
    line!.map((at) => Number(at.split(',')[0])),
    [...line!.map((at) => Number(at.split(',')[0]))].sort((a, b) => a - b),
  );
});

test("another library's times are a line of their own, where there are some", () => {
  const svg = sweepSvg('t', 's', [...POINTS, { m: 16, us: 20, cublasUs: 36, peer: { name: 'other', us: 21 } }], 0.8);
  assert.match(svg, />other M=16: 21\.0 µs</);
  assert.match(svg, />best other</);
  assert.ok(!sweepSvg('t', 's', POINTS, 0.8).includes('best other'));
});

test('the plots of docs/ are what scripts/plot-sweep.mjs draws of the committed timings', async () => {
  const script = pathToFileURL(path.join(ROOT, 'scripts/plot-sweep.mjs')).href;
  const { sweepPlots } = (await import(script)) as { sweepPlots(): { file: string; svg: string }[] };
  for (const { file, svg } of sweepPlots()) assert.equal(readFileSync(file, 'utf8'), svg);
});
