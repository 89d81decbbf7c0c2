import type { DType, NativeRuntime } from '../../../native/binding.js';
import { type QuantType, typeParams } from '../../core/quant-type.js';
import type { ResidentModel } from '../../generate/resident.js';
import type { BlockWeights, ModelGraph } from '../../model/program.js';
import type { PackedWeight, WeightSource } from '../../model/source.js';
import type { Noise } from '../kernels/operands.js';

/** Blocks of the packed format (docs/kernels.md): N x K. */
const [BLOCK_N, BLOCK_K] = [32, 128];

export interface WeightForm {
  /** Undefined: weights in the activations' dtype. */
  readonly type: QuantType | undefined;
  /** 32, 64, 128, or 0 for one scale a row. */
  readonly group: number;
}

/**
 * A model of random weights on a runtime's device: linears of blocks as `lpq pack` lays them out for gemm_packed (unsigned types
 * symmetric about their middle), all else in 16 bits. The caller disposes of it with disposeResident.
 */
export function randomModel(rt: NativeRuntime, noise: Noise, graph: ModelGraph, form: WeightForm): ResidentModel {
  const dtype: DType = rt.activationDtype === 'f32' ? 'f16' : rt.activationDtype;
  let shift = 0;
  const fill = (shape: readonly number[]) => noise.fill('numbers', dtype, shape, shift++);
  const outer: BlockWeights = new Map([...graph.outer].map(([name, shape]) => [name, fill(shape)]));
  const blocks = graph.blocks.map((block) => {
    const linears = new Set(
      block.stages.flatMap(({ feeds }) => feeds.flatMap((feed) => feed.linears.map(({ name }) => `${name}.weight`))),
    );
    const weights: BlockWeights = new Map();
    const { type } = form;
    if (type) weights.packed = new Map();
    for (const [name, shape] of block.tensors)
      if (type && linears.has(name))
        weights.packed?.set(name, packed(noise, dtype, type, form.group, shape as [number, number], shift++));
      else weights.set(name, fill(shape));
    return weights;
  });
  const source: WeightSource = {
    dir: graph.architecture,
    config: {},
    names: () => [],
    has: () => false,
    shape: () => [],
    tensor: () => Promise.reject(new Error('random weights are not read')),
  };
  return { source, graph, outer, blocks };
}

function packed(
  noise: Noise,
  dtype: DType,
  type: QuantType,
  group: number,
  [n, k]: readonly [number, number],
  shift: number,
): PackedWeight {
  const [down, across] = [Math.ceil(n / BLOCK_N), Math.ceil(k / BLOCK_K)];
  return {
    layout: 'tilus',
    shape: [n, k],
    type: typeParams(type),
    groupLength: group,
    zero: type.kind === 'int' && !type.signed ? 2 ** (type.bits - 1) : 0,
    weights: noise.fill('codes', 'u8', [down, across, (BLOCK_N * BLOCK_K * type.bits) / 8], shift),
    scales: noise.fill('numbers', dtype, [down, group === 0 ? 1 : Math.ceil(k / group), BLOCK_N], shift),
  };
}
