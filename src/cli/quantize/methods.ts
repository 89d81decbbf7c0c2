import { fmpq } from '../../fmpq/method.js';
import { gptq } from '../../gptq/method.js';
import type { Method } from '../../quantize/method.js';
import { rtn } from '../../rtn/method.js';

/** Every method; the first is the default. */
export const METHODS: readonly Method[] = [gptq, rtn, fmpq];

/** The method that checked settings name. */
export function methodOf({ method }: { readonly method: string }): Method {
  return METHODS.find(({ name }) => name === method) as Method;
}

/** The first of the methods that `suits`, for hints. */
export function methodThat(suits: (method: Method) => boolean): string {
  return `--method ${METHODS.find(suits)?.name}`;
}
