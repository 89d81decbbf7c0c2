import { decodeCode, quantType } from '../../src/core/quant-type.js';
import type { ScaleGrid } from '../foreign/scales.js';

let table: Float32Array | undefined;

/** Every E4M3 pattern as f32. */
function e4m3(): Float32Array {
  if (table) return table;
  const type = quantType('f8e4m3');
  table = Float32Array.from({ length: 256 }, (_, code) => decodeCode(type, code));
  return table;
}

/** W[n][k] = code * scale of its block, one product rounded to f32: out [N, K]. scales f32 [rows, columns]. */
export function fp8ToFloat(
  codes: Uint8Array,
  scales: Float32Array,
  { columns, block: [blockN, blockK] }: ScaleGrid,
  n: number,
  k: number,
  out: Float32Array,
): void {
  const value = e4m3();
  for (let row = 0; row < n; row++) {
    const first = Math.floor(row / blockN) * columns;
    for (let c = 0; c < columns; c++) {
      const scale = scales[first + c] as number;
      const end = row * k + Math.min(k, (c + 1) * blockK);
      for (let i = row * k + c * blockK; i < end; i++) out[i] = (value[codes[i] as number] as number) * scale;
    }
  }
}
