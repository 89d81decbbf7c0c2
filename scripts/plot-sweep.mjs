// Draws the sweeps over tokens of docs/ from the committed timings: node scripts/plot-sweep.mjs, after npm run build.
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { sweepSvg } from '../dist/bench/kernels/sweep.js';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));

const resultOf = (name) => JSON.parse(readFileSync(path.join(root, 'bench/results', name), 'utf8'));
const pointOf = (row) => ({
  ...{ m: row.m, us: row.us, cublasUs: row.cublas_us },
  ...(row.peer_us && { peer: { name: row.peer, us: row.peer_us } }),
});

/** The files in docs/, and what they should hold. */
export function sweepPlots() {
  const old = resultOf('2026-11-22-h200-kernels-scaled.json');
  const { rows } = resultOf('2026-11-25-h100-kernels-in-turns.json');
  const one = rows.filter((row) => row.KxN === '8192x28672' && row.type === 'u4' && row.x === 'f16');
  return [
    {
      file: path.join(root, 'docs/internals/kernels/kernels-sweep.svg'),
      svg: sweepSvg(
        `u4 8192x8192 on an ${old.device}`,
        'groups of 128, fp16; cuBLAS fp16 just before each case; dashed: 0.8 of it',
        old.rows.filter((row) => row.set === 'sweep').map(pointOf),
        0.8,
      ),
    },
    {
      file: path.join(root, 'docs/kernel-speed.svg'),
      svg: sweepSvg(
        '4 bits, 8192x28672, on an NVIDIA H100',
        'groups of 128, fp16; cuBLAS fp16 just before each case; dashed: 0.9 of it',
        one.map(pointOf),
        0.9,
      ),
    },
  ];
}

if (process.argv[1] === fileURLToPath(import.meta.url))
  for (const { file, svg } of sweepPlots()) {
    writeFileSync(file, svg);
    console.log(path.relative(root, file));
  }
