import type { CanonicalModule } from '../../formats/canonical/schema.js';
import { quantType } from '../core/quant-type.js';
import type { ModuleFacts } from './target.js';

/** An integer module in offset form: W = (u - z) * scale with unsigned codes u and zero points z of `bits` bits. */
export interface IntegerForm {
  readonly bits: number;
  /** Added to a code, modulo 2^bits, to make it unsigned: 2^(bits-1) for two's complement. Zero points move alike. */
  readonly bias: number;
  /** Every zero point is 2^(bits-1). */
  readonly symmetric: boolean;
  /** The one zero point in offset form, or a tensor holds them. */
  readonly zero: number | 'tensor';
}

/** Why a module has no such form: a clause and a remedy. */
export interface NoForm {
  readonly reason: string;
  readonly remedy: string;
}

export const noForm = (reason: string, remedy: string): NoForm => ({ reason, remedy });

/**
 * The integer form that gptq, compressed-tensors and marlin have in common, or why there is none: floats, float zero
 * points, zero points outside the codes' range, scales over several rows, a second level of scales, 2:4 masks, permuted
 * columns (the formats keep input features in place, and the order of the codes could not be proved from them; `permuted`
 * and `sparse` allow those).
 */
export function integerForm(
  module: CanonicalModule,
  facts: ModuleFacts,
  allow: { readonly permuted?: boolean; readonly sparse?: boolean } = {},
): IntegerForm | NoForm {
  const type = quantType(module.type);
  if (type.kind === 'float')
    return noForm(`it holds ${type.name} codes, not integers`, 'Quantize it to an integer type.');
  if (module.sparsity !== 'none' && !allow.sparse)
    return noForm('it is 2:4 sparse', 'Pack it with --target sparse_marlin, or quantize it without --sparsity.');
  if (module.permutation && !allow.permuted)
    return noForm('its columns are permuted', 'Quantize it with --order static, which keeps them in place.');
  if (module.scales.global) return noForm('its scales have a second level', 'Quantize it with plain f16 scales.');
  if (module.scales.block[0] !== 1)
    return noForm(`a scale covers ${module.scales.block[0]} output features`, 'Quantize it with scales for each row.');
  const { bits } = type;
  const bias = type.signed ? 2 ** (bits - 1) : 0;
  const largest = 2 ** bits - 1;
  const { zeros } = module;
  if (zeros.kind === 'float') return noForm('its zero points are floats', 'Quantize it with integer zero points.');
  if (zeros.kind === 'int') {
    const [low, high] = facts.zeroRange ?? [0, 0];
    if (low + bias < 0 || high + bias > largest)
      return noForm(
        `its zero points, ${low} to ${high}, exceed the ${bits}-bit range`,
        'Quantize it with zero points inside the range of the codes.',
      );
    return { bits, bias, symmetric: false, zero: 'tensor' };
  }
  const zero = (zeros.kind === 'const' ? zeros.value : 0) + bias;
  if (!Number.isInteger(zero) || zero < 0 || zero > largest)
    return noForm(
      `its zero point ${zero - bias} is not a ${bits}-bit integer`,
      bits === 1 ? 'Quantize it with --asym, or pack it for tilus.' : 'Quantize it with --sym or --asym.',
    );
  return { bits, bias, symmetric: zero === 2 ** (bits - 1), zero };
}

/** Why a module's scales cannot be stored as f16; those of bf16 can where each is an f16 number, too. */
export function halfScalesProblem({ scales }: CanonicalModule, facts: ModuleFacts, format: string): NoForm | undefined {
  if (scales.dtype === 'f16' || (scales.dtype === 'bf16' && facts.halfScales)) return undefined;
  return scales.dtype === 'bf16'
    ? {
        reason: `some of its bf16 scales are not exact in f16, the scale type of ${format}`,
        remedy: 'Pack it for compressed-tensors.',
      }
    : {
        reason: `its scales are ${scales.dtype}, and ${format} has f16 scales`,
        remedy: 'Quantize it with f16 or bf16 scales.',
      };
}

export function hasForm(form: IntegerForm | NoForm): form is IntegerForm {
  return 'bits' in form;
}
