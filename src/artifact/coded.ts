import type { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import type { CanonicalModule } from '../../formats/canonical/schema.js';
import type { CanonicalSource } from '../../formats/canonical/source.js';
import { fromTyped, type NativeRuntime, type Tensor, typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { quantType, typeParams } from '../core/quant-type.js';
import { type CodedWeight, codedKernel } from '../model/kernels/coded.js';
import type { WeightSource } from '../model/source.js';
import type { DecodedPart } from '../verify/decode.js';
import { replaced } from './replaced.js';

type Module = Pick<CanonicalModule, 'type' | 'shape' | 'granularity' | 'scales' | 'zeros' | 'activations'>;
type Parts = ReadonlyMap<DecodedPart, Tensor>;

/** Columns of a chunk of the CPU's product (native/cpu/packed/form.h): groups are whole chunks. */
const CHUNK = 32;

/**
 * A module as the CPU's product over codes takes it, from its canonical parts, which stay the caller's; undefined where it does not:
 * groups that are no multiple of 32, or of several rows, 2:4 weights, codes of activations.
 */
export async function codedWeight(
  rt: NativeRuntime,
  module: Module,
  parts: Parts,
  group: Tensor | undefined = parts.get('g_idx'),
): Promise<CodedWeight | undefined> {
  const { shape, granularity, zeros, scales, activations } = module;
  const [n, k] = shape;
  const groupSize = granularity.kind === 'group' ? granularity.size : granularity.kind === 'channel' ? 0 : undefined;
  if (groupSize === undefined || groupSize % CHUNK !== 0 || scales.block[0] !== 1) return undefined;
  if (activations || parts.has('mask') || k < 1 || n < 1) return undefined;
  const order = orderOf(k, groupSize, group, parts.get('permutation'));
  if (order === null) return undefined;
  const type = quantType(module.type);
  const codes = rt.allocate('u8', [n, k]);
  ops.unpackCodes(rt, parts.get('codes') as Tensor, codes, { bits: type.bits });
  const part = (name: DecodedPart): Tensor | undefined => {
    const tensor = parts.get(name);
    return tensor?.view(tensor.shape);
  };
  const global = parts.get('global_scale');
  const grouped = part('zeros');
  return {
    kernel: codedKernel,
    shape,
    type: typeParams(type),
    groupSize,
    zero: zeros.kind === 'const' ? zeros.value : 0,
    global: global ? (typed<Float32Array>(global)[0] as number) : 1,
    weights: codes,
    scales: part('scales') as Tensor,
    ...(grouped && { zeros: grouped }),
    ...(order && { order: fromTyped('i32', [2, k], order) }),
  };
}

/** Columns group by group, and those of x that they multiply; undefined: as they stand; null: groups are not of one size. */
function orderOf(
  k: number,
  size: number,
  group: Tensor | undefined,
  permutation: Tensor | undefined,
): Int32Array | undefined | null {
  const groups = group && size > 0 ? typed<Int32Array>(group) : undefined;
  const inputs = permutation && typed<Int32Array>(permutation);
  const columns = Array.from({ length: k }, (_, j) => j);
  if (groups) columns.sort((a, b) => groups[a]! - groups[b]! || a - b);
  if (groups && columns.some((column, at) => groups[column] !== Math.floor(at / size))) return null;
  if (!inputs && columns.every((column, at) => column === at)) return undefined;
  return Int32Array.from([...columns, ...columns.map((column) => (inputs ? inputs[column]! : column))]);
}

const PARTS = ['codes', 'scales', 'zeros', 'g_idx', 'permutation', 'global_scale', 'mask'] as const;

/** A quantized checkpoint whose modules are handed out as codes, where the CPU multiplies them. Closing it closes `source`. */
export function codedSource(source: CanonicalSource, rt: NativeRuntime): WeightSource & { close(): void } {
  const { checkpoint } = source;
  const modules = new Map(checkpoint.moduleNames().map((name) => [`${name}.weight`, name]));
  return {
    ...replaced(source, {
      packed(weight) {
        const module = modules.get(weight);
        return module === undefined ? undefined : ofModule(rt, checkpoint, module);
      },
    }),
    close: () => source.close(),
  };
}

async function ofModule(rt: NativeRuntime, checkpoint: CanonicalCheckpoint, name: string) {
  const parts = new Map(
    PARTS.flatMap((part) => {
      const tensor = checkpoint.part(name, part);
      return tensor ? [[part, tensor] as const] : [];
    }),
  );
  try {
    const weight = await codedWeight(rt, checkpoint.module(name), parts);
    await rt.sync();
    return weight;
  } finally {
    for (const tensor of parts.values()) tensor.dispose();
  }
}
