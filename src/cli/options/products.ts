import type { Command } from 'commander';
import type { NativeRuntime } from '../../../native/binding.js';
import { LpqError, oneOf } from '../../core/error.js';

/** The option of commands that compute with a finished model. */
export function productsOption(command: Command): Command {
  return command
    .optionsGroup('Device:')
    .option(
      '--products <type>',
      'on the CPU: f32, or bf16, which rounds both sides of each product and takes half the time where the CPU multiplies bf16 (default: f32)',
      (text: string) => oneOf('--products', ['f32', 'bf16'], text),
    );
}

/** Throws LPQ_USAGE where the device does not have the choice. */
export function checkProducts(
  rt: NativeRuntime,
  { products }: { readonly products?: NativeRuntime['products'] },
): void {
  if (products === undefined || rt.device === 'cpu') return;
  throw new LpqError('LPQ_USAGE', `--products has no effect on ${rt.device}`, {
    got: products,
    expected: 'a device that computes in the type of its activations',
    hint: 'Leave it out, or use --device cpu.',
  });
}

/** What the results of a command say about it. */
export function productsUsed(rt: NativeRuntime): { readonly products?: 'f32' | 'bf16' } {
  return rt.device === 'cpu' ? { products: rt.products ?? 'f32' } : {};
}
