import type { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import { scaleShape } from '../../formats/canonical/tensors.js';
import { allocate, fromTyped, type Tensor, typed } from '../../native/binding.js';
import { groupLength } from '../core/granularity.js';
import type { IntegerForm } from './integer-form.js';
import type { PackJob } from './target.js';

/**
 * Zero points in offset form, U8 [N, G], whatever the module stores (u8, i16, one constant). `plan` has checked that
 * they fit. The caller disposes of it.
 */
export function offsetZeros({ checkpoint, name, module }: PackJob, form: IntegerForm): Tensor {
  const shape = scaleShape(module);
  if (form.zero !== 'tensor') {
    const tensor = allocate('u8', shape);
    tensor.bytes().fill(form.zero);
    return tensor;
  }
  const stored = checkpoint.require(name, 'zeros');
  const values = typed<Uint8Array | Int16Array>(stored);
  const tensor = fromTyped(
    'u8',
    shape,
    Uint8Array.from(values, (value) => value + form.bias),
  );
  stored.dispose();
  return tensor;
}

/** How the columns of a module's codes become those of the input features, and the group of each. */
export interface ColumnOrder {
  /** I32 [K]: feature k is column order[k] of the codes; absent when they are in order. */
  readonly order?: Tensor;
  /** I32 [K]: the group of feature k. */
  readonly groups: Int32Array;
  /** Whether groups are anything but k / group size. */
  readonly actOrder: boolean;
}

/** Reads permutation and g_idx of a module. The caller disposes of `order`. */
export function columnOrder(checkpoint: CanonicalCheckpoint, name: string): ColumnOrder {
  const module = checkpoint.module(name);
  const k = module.shape[1];
  const length = groupLength(module.granularity, k);
  const stored = checkpoint.part(name, 'g_idx');
  const groupOf = stored
    ? Int32Array.from(typed<Int32Array>(stored))
    : Int32Array.from({ length: k }, (_, column) => Math.floor(column / length));
  stored?.dispose();
  const permutation = checkpoint.part(name, 'permutation');
  let order: Tensor | undefined;
  let groups = groupOf;
  if (permutation) {
    // Column j multiplies feature permutation[j]; packing asks the other way round.
    const inverse = new Int32Array(k);
    typed<Int32Array>(permutation).forEach((feature, column) => {
      inverse[feature] = column;
    });
    permutation.dispose();
    groups = inverse.map((column) => groupOf[column]!);
    order = fromTyped('i32', [k], inverse);
  }
  const actOrder = groups.some((group, feature) => group !== Math.floor(feature / length));
  return { ...(order ? { order } : {}), groups, actOrder };
}
