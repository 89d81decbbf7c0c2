import type { Granularity } from '../../src/core/granularity.js';

/**
 * config.json's quantization_config; quantize_config.json holds the same object. `plain`: linears that stay as they are,
 * which loaders look for inside the names of modules. zero_point is true for symmetric weights too: qzeros is always
 * stored, and kernels that are told otherwise expect codes of another convention. `lm_head` stands there where it is quantized:
 * vLLM looks for quantized tensors of the head only where it is told so.
 */
export function awqConfig(options: {
  granularity: Granularity;
  plain: readonly string[];
  lmHead?: boolean;
}): Record<string, unknown> {
  const { granularity, plain, lmHead } = options;
  return {
    quant_method: 'awq',
    bits: 4,
    group_size: granularity.kind === 'channel' ? -1 : granularity.size,
    zero_point: true,
    version: 'gemm',
    modules_to_not_convert: plain.length > 0 ? [...plain] : null,
    ...(lmHead && { lm_head: true }),
  };
}
