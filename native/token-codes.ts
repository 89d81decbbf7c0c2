import type { Tensor } from './binding.js';

/** What quantizeTokens makes of a matrix [T,C]: codes I8 or F8_E4M3 [T,C] and scales f32 [T] (native/ops/token_codes.h). */
export interface TokenCodes {
  readonly codes: Tensor;
  readonly scales: Tensor;
}

/** Further outputs of an operation that makes codes where they are wanted. */
export function codeOutputs(codes: TokenCodes | undefined): Tensor[] {
  return codes ? [codes.codes, codes.scales] : [];
}
