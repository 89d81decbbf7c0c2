// Draws the sweep over tokens of docs/kernels.md from the committed timings: node scripts/plot-sweep.mjs, after npm run build.
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { sweepSvg } from '../dist/src/bench/kernels/sweep.js';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));

/** The file in docs/, and what it should hold. */
export function sweepPlot() {
  const { device, rows } = JSON.parse(
    readFileSync(path.join(root, 'bench/results/2026-11-22-h200-kernels-scaled.json'), 'utf8'),
  );
  const points = rows
    .filter((row) => row.k === 8192 && row.n === 8192 && row.chosen)
    .map((row) => ({ m: row.m, us: row.us, cublasUs: row.cublas_us }));
  const svg = sweepSvg(
    `u4 8192x8192 on an ${device}`,
    'groups of 128, fp16; cuBLAS fp16 just before each case; dashed: 0.8 of it',
    points,
    0.8,
  );
  return { file: path.join(root, 'docs/kernels-sweep.svg'), svg };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { file, svg } = sweepPlot();
  writeFileSync(file, svg);
  console.log(path.relative(root, file));
}
