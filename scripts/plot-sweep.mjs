// Draws the sweep over tokens of docs/internals/kernels/scaled.md from the committed timings: node scripts/plot-sweep.mjs, after npm run build.
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { sweepSvg } from '../dist/bench/kernels/sweep.js';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));

const rowsOf = (name) => JSON.parse(readFileSync(path.join(root, 'bench/results', name), 'utf8'));

/** The file in docs/, and what it should hold. */
export function sweepPlot() {
  const { device, rows } = rowsOf('2026-11-22-h200-kernels-scaled.json');
  const sweep = rows.filter((row) => row.set === 'sweep');
  const svg = sweepSvg(
    `u4 8192x8192 on an ${device}`,
    'groups of 128, fp16; cuBLAS fp16 just before each case; dashed: 0.8 of it',
    sweep.map((row) => ({ m: row.m, us: row.us, cublasUs: row.cublas_us })),
    0.8,
  );
  return { file: path.join(root, 'docs/internals/kernels/kernels-sweep.svg'), svg };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { file, svg } = sweepPlot();
  writeFileSync(file, svg);
  console.log(path.relative(root, file));
}
