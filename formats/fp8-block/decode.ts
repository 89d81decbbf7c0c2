import { addon, type Tensor, threadCount } from '../../native/binding.js';
import type { ScaleGrid } from '../foreign/scales.js';

/** W[n][k] = code * scale of its block, one product rounded to f32: out f32 [N, K]. codes E4M3, scales f32 [rows, columns]. */
export function fp8ToFloat(
  codes: Uint8Array,
  scales: Float32Array,
  { columns, block: [blockN, blockK] }: ScaleGrid,
  out: Tensor,
): void {
  addon().decodeFp8(codes, scales, columns, blockN, blockK, out, threadCount());
}
