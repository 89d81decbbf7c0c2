import type { NativeRuntime } from '../../native/binding.js';

/**
 * The runtime that training computes on: activations and gradients are f32 there. Where those of a device's models have 16 bits, products
 * round what they read to bf16 and sum in fp32; gradients keep the range of f32 in between.
 */
export function trainingRuntime(rt: NativeRuntime): NativeRuntime {
  if (rt.device === 'cpu' || rt.activationDtype === 'f32') return rt;
  const members: Partial<NativeRuntime> = { activationDtype: 'f32', products: 'bf16' };
  return new Proxy(rt, {
    get: (target, name) => {
      if (Object.hasOwn(members, name)) return members[name as keyof NativeRuntime];
      const value: unknown = Reflect.get(target, name, target);
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
}
