import type { Quality } from '../../formats/canonical/schema.js';
import type { Measures } from '../../formats/report/schema.js';
import type { NativeRuntime, Tensor } from '../../native/binding.js';
import type { QuantScheme } from './scheme.js';

/**
 * What every quantizer returns for a linear W [N, K], in the canonical form (formats/canonical/spec.md). The weight is
 * (decode(code) - zero) * scale * globalScale. The receiver disposes of the tensors.
 */
export interface QuantizedModule {
  readonly scheme: QuantScheme;
  /** [N, K]. */
  readonly shape: readonly [number, number];
  /** Bitstream U8 [N, ceil(K*bits/8)], element k of a row at bit k*bits. */
  readonly codes: Tensor;
  /** [N, K/groupSize] of scheme.scaleDtype. */
  readonly scales: Tensor;
  /** Asymmetric schemes only: true zeros, u8 or i16 as zerosOf(scheme) says, shape of the scales. */
  readonly zeros?: Tensor;
  /** [K]: column j of the codes multiplies input feature permutation[j]. */
  readonly permutation?: Int32Array;
  /** 2:4 schemes only: U8 [N, ceil(K/8)], bit k of a row is 1 where the weight stays. Codes of the others stand for 0. */
  readonly mask?: Tensor;
  /** An f32 value; only when scheme.globalScale. */
  readonly globalScale?: number;
  readonly quality: Quality;
  /** What reports tell of it beside; the checkpoint's bytes do not have it. */
  readonly measures?: Measures;
}

const TENSORS = ['codes', 'scales', 'zeros', 'mask'] as const;
type Tensors = Pick<QuantizedModule, (typeof TENSORS)[number]>;

/** The tensors that a module has, by name. */
export function tensorsOf(module: Tensors): [(typeof TENSORS)[number], Tensor][] {
  return TENSORS.flatMap((name) => (module[name] ? [[name, module[name]] as [typeof name, Tensor]] : []));
}

/** The module with other tensors in their place. */
export function mapTensors<T extends Tensors>(module: T, make: (tensor: Tensor) => Tensor): T {
  return { ...module, ...Object.fromEntries(tensorsOf(module).map(([name, tensor]) => [name, make(tensor)])) };
}

/** The result in the CPU's memory, once it is computed; one wait brings all its tensors. Both must be disposed of. */
export async function downloadModule(rt: NativeRuntime, module: QuantizedModule): Promise<QuantizedModule> {
  const tensors = tensorsOf(module);
  const here = await allOrNone(
    tensors.map(([, tensor]) => rt.download(tensor)),
    (tensor) => tensor.dispose(),
  );
  return { ...module, ...Object.fromEntries(tensors.map(([name], i) => [name, here[i]])) };
}

/** Waits for all; where one fails, lets go of the others and throws its failure. */
export async function allOrNone<T>(parts: readonly Promise<T>[], dispose: (part: T) => void): Promise<T[]> {
  const got = await Promise.allSettled(parts);
  const failed = got.find((one) => one.status === 'rejected');
  const made = got.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []));
  if (!failed) return made;
  made.forEach(dispose);
  throw failed.reason;
}

/** Lets go of a result's tensors. */
export function disposeModule(module: Tensors): void {
  for (const [, tensor] of tensorsOf(module)) tensor.dispose();
}
