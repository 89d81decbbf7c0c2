import type { CanonicalModule } from '../../formats/canonical/schema.js';
import { scaleShape } from '../../formats/canonical/tensors.js';
import { allocate, fromTyped, type Tensor, typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { groupSizeOf } from '../core/granularity.js';
import type { IntegerForm, NoForm } from './integer-form.js';
import type { Operands } from './layout.js';
import type { ModuleFacts } from './target.js';

/**
 * Zero points in offset form, U8 [N, G], whatever the module stores (u8, i16, one constant). `fit` has checked that
 * they fit. The caller disposes of it.
 */
export function offsetZeros({ module, zeros }: Pick<Operands, 'module' | 'zeros'>, form: IntegerForm): Tensor {
  const shape = scaleShape(module);
  if (form.zero !== 'tensor') {
    const tensor = allocate('u8', shape);
    tensor.bytes().fill(form.zero);
    return tensor;
  }
  const values = typed<Uint8Array | Int16Array>(zeros!);
  return fromTyped(
    'u8',
    shape,
    Uint8Array.from(values, (value) => value + form.bias),
  );
}

/** Scales f16 or bf16 as f16; what does not fit f16 was refused before. The caller disposes of it. */
export async function halfScales({ rt, scales }: Operands): Promise<Tensor> {
  if (scales.dtype === 'f16') return scales.view(scales.shape);
  const half = allocate('f16', scales.shape);
  ops.cast(rt, scales, half);
  await rt.sync();
  return half;
}

/**
 * I32 [K]: input features sorted by group, features of a group in their order (what g_idx means to kernels that read
 * groups as runs). The caller disposes of it.
 */
export function columnOrder(groupIndex: Tensor): Tensor {
  const groups = typed<Int32Array>(groupIndex);
  const order = Int32Array.from(groups.keys()).sort((a, b) => groups[a]! - groups[b]! || a - b);
  return fromTyped('i32', [groups.length], order);
}

/** I32 [K]: the group of every input feature, k / group size unless the module names them. The caller disposes of it. */
export function groupIndex({ module, groupIndex: stored }: Operands): Tensor {
  if (stored) return stored.view(stored.shape);
  const k = module.shape[1];
  const length = groupSizeOf(module.granularity, k);
  return fromTyped(
    'i32',
    [k],
    Int32Array.from({ length: k }, (_, feature) => Math.floor(feature / length)),
  );
}

/** Whether columns that are not in place can be named by one permutation whose groups are runs. */
export function reorderProblem(module: CanonicalModule, facts: ModuleFacts): NoForm | undefined {
  if (module.groupIndex && module.permutation)
    return {
      reason: 'its columns are permuted, and it also has g_idx',
      remedy: 'Quantize it with --order static, which keeps them in place.',
    };
  if (module.groupIndex && facts.evenGroups === false)
    return {
      reason: 'its groups (g_idx) have different numbers of input features',
      remedy: 'Quantize it with --order static, which keeps groups of one size.',
    };
  return undefined;
}
