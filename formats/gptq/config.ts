import { LpqError } from '../../src/core/error.js';
import type { Granularity } from '../../src/core/granularity.js';
import { GPTQ_BITS, type ZeroConvention } from './layout.js';

export interface GptqOptions {
  readonly bits: number;
  readonly granularity: Granularity;
  /** Whether g_idx differs from k div group size. */
  readonly descAct: boolean;
  readonly sym: boolean;
  readonly convention: ZeroConvention;
  /** Whether lm_head is quantized too. */
  readonly lmHead?: boolean;
  readonly dampPercent?: number;
  readonly staticGroups?: boolean;
  /** Regular expressions of modules -> what differs; {'-:PATTERN': {}} leaves modules unquantized. */
  readonly dynamic?: Readonly<Record<string, Readonly<Record<string, unknown>>>>;
  /** TOOL:VERSION, for meta.quantizer. */
  readonly quantizer: string;
}

/** What a reader needs of a published quantization_config. */
export interface GptqConfig {
  readonly bits: number;
  readonly granularity: Granularity;
  readonly descAct: boolean;
  readonly sym: boolean;
  readonly convention: ZeroConvention;
}

/** config.json's quantization_config; quantize_config.json holds the same object. Throws LPQ_PACK. */
export function gptqConfig(options: GptqOptions): Record<string, unknown> {
  const { bits, granularity, sym, convention } = options;
  if (!GPTQ_BITS.includes(bits))
    throw new LpqError('LPQ_PACK', `the GPTQ format has no ${bits}-bit codes`, { expected: '2, 3, 4 or 8' });
  if (!sym && convention === 'v1')
    throw new LpqError('LPQ_PACK', 'GPTQ v1 is unsafe for asymmetric zero points: a zero of 0 would be stored as -1', {
      hint: 'Pack for gptq_v2.',
    });
  return {
    quant_method: 'gptq',
    checkpoint_format: convention === 'v1' ? 'gptq' : 'gptq_v2',
    bits,
    group_size: granularity.kind === 'channel' ? -1 : granularity.size,
    desc_act: options.descAct,
    sym,
    static_groups: options.staticGroups ?? false,
    true_sequential: true,
    lm_head: options.lmHead ?? false,
    damp_percent: options.dampPercent ?? 0.01,
    pack_dtype: 'int32',
    ...(options.dynamic && { dynamic: options.dynamic }),
    meta: { quantizer: [options.quantizer] },
  };
}

/** Reads a quantization_config of anybody's. Throws LPQ_CONFIG naming the key. */
export function readGptqConfig(where: string, config: Readonly<Record<string, unknown>>): GptqConfig {
  const bad = (key: string, expected: string): never => {
    throw new LpqError('LPQ_CONFIG', `${where}: ${key} of the GPTQ configuration cannot be used`, {
      got: JSON.stringify(config[key]) ?? 'nothing',
      expected,
    });
  };
  const { bits, group_size: size, checkpoint_format: format = 'gptq', desc_act: descAct = false, sym = true } = config;
  if (config.quant_method !== undefined && config.quant_method !== 'gptq') bad('quant_method', 'gptq');
  if (typeof bits !== 'number' || !GPTQ_BITS.includes(bits)) return bad('bits', '2, 3, 4 or 8');
  if (typeof size !== 'number' || !Number.isInteger(size) || (size < 1 && size !== -1))
    return bad('group_size', '-1 or a positive integer');
  if (format !== 'gptq' && format !== 'gptq_v2') return bad('checkpoint_format', 'gptq or gptq_v2');
  if (typeof descAct !== 'boolean') return bad('desc_act', 'true or false');
  if (typeof sym !== 'boolean') return bad('sym', 'true or false');
  const granularity = size === -1 ? ({ kind: 'channel' } as const) : ({ kind: 'group', size } as const);
  return { bits, granularity, descAct, sym, convention: format === 'gptq' ? 'v1' : 'v2' };
}
