import type { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import type { CanonicalModule } from '../../formats/canonical/schema.js';
import { allocate, type Tensor } from '../../native/binding.js';
import { groupSizeOf } from '../core/granularity.js';
import { quantType } from '../core/quant-type.js';
import { knownArchitecture } from '../model/architectures/index.js';
import type { Operands } from './layout.js';

/** How the ranks of tensor parallelism share a module: by output features n, by input features k, or each has it whole. */
export type Split = { readonly count: number; readonly split: 'n' | 'k' } | { readonly whole: string };

/**
 * Linears by the last part of their names. Those of a block's first half are column-parallel (each rank computes its
 * output features), those of the second row-parallel (each rank reads the features that it computed).
 */
const ROLES: readonly (readonly [role: 'n' | 'k', heads: 'q' | 'kv' | undefined, names: readonly string[]])[] = [
  ['n', 'q', ['q_proj', 'q_b_proj', 'kv_b_proj']],
  ['n', 'kv', ['k_proj', 'v_proj']],
  ['n', undefined, ['gate_proj', 'up_proj', 'w1', 'w3', 'fc1', 'c_fc', 'dense_h_to_4h', 'lm_head']],
  ['k', 'q', ['o_proj', 'out_proj']],
  ['k', undefined, ['down_proj', 'w2', 'fc2', 'c_proj', 'dense_4h_to_h']],
];

/** How `count` ranks share the module `name`. */
export function splitOf(
  checkpoint: Pick<CanonicalCheckpoint, 'module' | 'config'>,
  name: string,
  count: number,
): Split {
  const module = checkpoint.module(name);
  if (isRecurrent(checkpoint.config, name))
    return { whole: 'it belongs to a recurrent layer, whose parts belong together' };
  const last = name.slice(name.lastIndexOf('.') + 1);
  const found = ROLES.find(([, , names]) => names.includes(last));
  if (!found) return { whole: `'${last}' is neither column- nor row-parallel` };
  const [split, kind] = found;
  if (kind) {
    const keys = kind === 'q' ? ['num_attention_heads'] : ['num_key_value_heads', 'num_attention_heads'];
    const heads = keys.map((key) => checkpoint.config[key]).find((value) => typeof value === 'number') as
      | number
      | undefined;
    if (heads !== undefined && heads % count !== 0)
      return { whole: `its ${heads} heads cannot be split over ${count} ranks` };
  }
  const problem = splitProblem(module, split, count);
  return problem ? { whole: problem } : { count, split };
}

/** Whether a module is one that recurrent layers of its architecture have. */
function isRecurrent(config: Readonly<Record<string, unknown>>, name: string): boolean {
  const names = Object.values(knownArchitecture(config)?.recurrent?.mixer.names ?? {}).flat();
  return names.some((each) => name.endsWith(`.${each}`));
}

function splitProblem(module: CanonicalModule, split: 'n' | 'k', count: number): string | undefined {
  const [n, k] = module.shape;
  if (split === 'n') return n % count === 0 ? undefined : `its N = ${n} is not a multiple of ${count}`;
  if (module.groupIndex || module.permutation)
    return 'its input features are reordered, so a part of K is not contiguous';
  if (k % count !== 0) return `its K = ${k} is not a multiple of ${count}`;
  const part = k / count;
  if (module.granularity.kind === 'group' && part % groupSizeOf(module.granularity, k) !== 0)
    return `its groups of ${module.granularity.size} do not divide the ${part} input features of a rank`;
  if (module.sparsity !== 'none' && part % 8 !== 0)
    return `the mask of the ${part} input features of a rank does not fill whole bytes`;
  if ((part * quantType(module.type).bits) % 8 !== 0) return `the ${part} codes of a rank do not fill whole bytes`;
  return undefined;
}

/** The manifest entry of a rank's part; all ranks' are alike but for the precisions of their blocks of activations. */
export function partOf(module: CanonicalModule, split: Split, rank = 0): CanonicalModule {
  if ('whole' in split) return module;
  const [n, k] = module.shape;
  if (split.split === 'n') return { ...module, shape: [n / split.count, k] };
  const shape: [number, number] = [n, k / split.count];
  if (module.granularity.kind === 'group') return { ...module, shape, ...activationsOf(module, shape[1], rank) };
  return { ...module, shape, scales: { ...module.scales, block: [module.scales.block[0], shape[1]] } };
}

/** What the linear reads in a rank's blocks of input features (W4Ax), of `k` features. */
function activationsOf(
  { activations }: CanonicalModule,
  k: number,
  rank: number,
): Pick<CanonicalModule, 'activations'> {
  if (!activations) return {};
  const own = <T>(list: readonly T[]): T[] => list.slice((k / 128) * rank, (k / 128) * (rank + 1));
  return { activations: { ...activations, bits: own(activations.bits), clip: own(activations.clip) } };
}

/** The tensors of a rank's part: views of rows, or copies of columns. The caller disposes of them. */
export function partOperands(whole: Operands, split: Split, rank: number): Operands {
  if ('whole' in split) return { ...whole, codes: whole.codes.view(whole.codes.shape) };
  const module = partOf(whole.module, split, rank);
  const grouped = module.granularity.kind === 'group';
  const part = (tensor: Tensor): Tensor => {
    const [rows, columns] = tensor.shape as [number, number];
    if (split.split === 'n') return tensor.view([rows / split.count, columns], (rows / split.count) * columns * rank);
    return columnsOf(tensor, (columns / split.count) * rank, columns / split.count);
  };
  const perGroup = (tensor: Tensor): Tensor =>
    split.split === 'n' || grouped ? part(tensor) : tensor.view(tensor.shape);
  return {
    ...whole,
    module,
    codes: part(whole.codes),
    scales: perGroup(whole.scales),
    zeros: whole.zeros && perGroup(whole.zeros),
    mask: whole.mask && part(whole.mask),
  };
}

function columnsOf(tensor: Tensor, first: number, count: number): Tensor {
  const [rows, columns] = tensor.shape as [number, number];
  const copy = allocate(tensor.dtype, [rows, count]);
  const width = tensor.byteLength / (rows * columns);
  const [from, to] = [tensor.bytes(), copy.bytes()];
  for (let row = 0; row < rows; row++) {
    const at = (row * columns + first) * width;
    to.set(from.subarray(at, at + count * width), row * count * width);
  }
  return copy;
}
