import type { VariantName } from './quantized.js';

/** An artifact: what is packed, for which target, and how. */
export interface Case {
  readonly target: string;
  readonly variant: VariantName;
  readonly ranks?: number;
  /** Tensors in several shards, and an index. */
  readonly sharded?: true;
}

const GGUF = ['q2_k', 'q3_k', 'q4_k', 'q5_k', 'q6_k', 'q8_0'] as const;

/** An artifact of every target and of every form of those with several. */
export const CASES: readonly Case[] = [
  { target: 'gptq', variant: 'mixed' },
  { target: 'gptq', variant: 'alike' },
  { target: 'gptq', variant: 'fused' },
  { target: 'gptq', variant: 'ordered' },
  { target: 'gptq', variant: 'head' },
  { target: 'gptq', variant: 'mixture' },
  { target: 'gptq_v2', variant: 'zeros' },
  { target: 'gptq_v2', variant: 'three' },
  { target: 'awq', variant: 'zeros' },
  { target: 'awq', variant: 'mixed' },
  { target: 'awq', variant: 'head' },
  { target: 'awq', variant: 'mixture' },
  { target: 'compressed-tensors', variant: 'mixed' },
  { target: 'compressed-tensors', variant: 'alike', sharded: true },
  { target: 'compressed-tensors', variant: 'three' },
  { target: 'compressed-tensors', variant: 'floats' },
  { target: 'compressed-tensors', variant: 'ordered' },
  { target: 'compressed-tensors', variant: 'head' },
  { target: 'compressed-tensors', variant: 'fp8' },
  { target: 'compressed-tensors', variant: 'mxfp4' },
  { target: 'compressed-tensors', variant: 'nvfp4' },
  { target: 'compressed-tensors', variant: 'mixture' },
  { target: 'compressed-tensors', variant: 'mxfp8' },
  { target: 'compressed-tensors-w8a8', variant: 'bytes' },
  { target: 'compressed-tensors-w8a8', variant: 'fp8' },
  { target: 'compressed-tensors-w8a8', variant: 'static8' },
  { target: 'compressed-tensors-w8a8', variant: 'mxfp8' },
  { target: 'compressed-tensors-w4a8', variant: 'cache' },
  { target: 'compressed-tensors-w4a4', variant: 'static4' },
  { target: 'modelopt', variant: 'static4' },
  { target: 'modelopt', variant: 'eights' },
  { target: 'marlin', variant: 'mixed' },
  { target: 'marlin', variant: 'zeros' },
  { target: 'marlin', variant: 'channel' },
  { target: 'marlin', variant: 'bytes128' },
  { target: 'marlin', variant: 'bytesAsym' },
  { target: 'marlin', variant: 'ordered' },
  { target: 'marlin', variant: 'alike', ranks: 2 },
  { target: 'sparse_marlin', variant: 'sparse' },
  { target: 'turbomind', variant: 'zeros' },
  { target: 'turbomind', variant: 'mxfp4' },
  { target: 'turbomind', variant: 'mixture' },
  { target: 'turbomind_sm70', variant: 'zeros' },
  { target: 'tilus', variant: 'mixed' },
  { target: 'tilus', variant: 'three' },
  { target: 'tilus', variant: 'channel' },
  { target: 'tilus', variant: 'gathered' },
  { target: 'comet', variant: 'codes' },
  { target: 'w4a8', variant: 'twoLevel' },
  { target: 'sm80', variant: 'mixed' },
  { target: 'sm86', variant: 'zeros' },
  { target: 'sm89', variant: 'bytes128' },
  { target: 'sm90', variant: 'mixed' },
  { target: 'gguf', variant: 'mixed' },
  { target: 'gguf', variant: 'zeros' },
  { target: 'gguf', variant: 'floats' },
  { target: 'gguf', variant: 'mxfp4' },
  { target: 'gguf', variant: 'mixture' },
  ...GGUF.map((type): Case => ({ target: `gguf-${type}`, variant: 'mixed' })),
];

/** Its name in lists and on the disk. */
export function caseName({ target, variant, ranks }: Case): string {
  return `${target}/${variant}${ranks ? `/${ranks} ranks` : ''}`;
}
