import { addon, type KernelChoice, type KernelQuestion } from '../../native/binding.js';
import { tell } from '../../src/core/activity.js';
import type { QuantType } from '../../src/core/quant-type.js';
import type { GemmShape } from './cases.js';

/** A product and what runs it. */
export interface Explained extends GemmShape {
  readonly type: string;
  readonly m: number;
  readonly choice: KernelChoice;
}

/** The choice of kernel for every type, shape and number of tokens (lpq's own layout). Throws as addon().explainKernel. */
export function explainKernels(
  device: number | string,
  types: readonly QuantType[],
  shapes: readonly GemmShape[],
  tokens: readonly number[],
  { dtype, group }: { readonly dtype: 'f16' | 'bf16'; readonly group: number },
): Explained[] {
  return types.flatMap((type) =>
    shapes.flatMap(({ k, n }) =>
      tokens.map((m) => {
        const question: KernelQuestion = {
          device,
          layout: 'tilus',
          type: type.name,
          m,
          n,
          k,
          group,
          activations: dtype,
          // The middle code of symmetric types (docs/internals/layouts/tilus.md).
          zero: type.kind === 'int' && !type.signed ? 2 ** (type.bits - 1) : 0,
        };
        tell(`choosing for ${type.name} ${k}x${n} M=${m}`);
        return { type: type.name, k, n, m, choice: addon().explainKernel(question) };
      }),
    ),
  );
}

/** `kernel: 132 blocks of 544 threads, ...`; launches that are the same are counted. */
export function launchLines({ launches }: KernelChoice): string[] {
  const counts = new Map<string, number>();
  for (const { text } of launches) counts.set(text, (counts.get(text) ?? 0) + 1);
  return [...counts].map(([text, times]) => (times === 1 ? text : `${text}, ${times} times`));
}
