import { addon, type Tensor, threadCount } from '../../native/binding.js';

/**
 * One expert as the architecture stores it in floats: bf16 [K, N], transposed, value = code * 2^(scale - 127). Exact: two
 * significant bits, the least 2^-128, which bf16 holds as a subnormal; from 2^128 on (scales of 253 and 254) infinity, and
 * 255 is NaN. blocks U8 [N, K/2], even codes low; scales U8 [N, K/32].
 */
export function mxfp4ToBf16(blocks: Uint8Array, scales: Uint8Array, n: number, k: number, out: Tensor): void {
  addon().decodeMxfp4(blocks, scales, n, k, out, threadCount());
}
