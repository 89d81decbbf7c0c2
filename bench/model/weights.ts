import { type DType, type NativeRuntime, type Tensor, uploadTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { tell } from '../../src/core/activity.js';
import { decodeCode, type QuantType, quantType, typeParams } from '../../src/core/quant-type.js';
import type { ResidentModel } from '../../src/generate/resident.js';
import { byCodes } from '../../src/model/kernels/by-codes.js';
import { type CometWeight, cometKernel, placesInBytes } from '../../src/model/kernels/comet.js';
import type { PackedWeight } from '../../src/model/kernels/kernel.js';
import { type TilusWeight, tilusKernel } from '../../src/model/kernels/tilus.js';
import { type W4a8Weight, w4a8Kernel } from '../../src/model/kernels/w4a8.js';
import { w8a8Kernel } from '../../src/model/kernels/w8a8.js';
import { tensorsOf } from '../../src/model/packed.js';
import type { BlockWeights, ModelGraph } from '../../src/model/program.js';
import { joinSiblings } from '../../src/model/siblings.js';
import type { WeightSource } from '../../src/model/source.js';
import { stackExperts } from '../../src/model/stacked-experts.js';
import { disposeWeights } from '../../src/model/weights.js';
import type { Noise } from '../kernels/operands.js';
import type { PackedForm, WeightForm } from './forms.js';

/** Blocks of the packed format (docs/internals/layouts/tilus.md): N x K. */
const [BLOCK_N, BLOCK_K] = [32, 128];

export interface WeightOptions {
  /** Of types: 32, 64, 128, or 0 for one scale a row. */
  readonly group: number;
  /** Of w4ax: share of the blocks of activations that have 4 bits. */
  readonly int4Share: number;
  /** What lm_head is multiplied as. */
  readonly head: WeightForm;
  /** Of tables of experts by tokens' ids: how many there are. */
  readonly tables: ReadonlyMap<string, number>;
}

/**
 * A model of random weights on a runtime's device: linears of blocks in a form, those of one input joined (model/siblings.ts), types as
 * `lpq pack --target tilus` lays them out (unsigned ones symmetric about their middle), lm_head in its own, all else in 16 bits. The
 * caller disposes of it with disposeResident.
 */
export async function randomModel(
  rt: NativeRuntime,
  noise: Noise,
  graph: ModelGraph,
  form: WeightForm,
  options: WeightOptions,
  onBlock: (index: number) => void = () => {},
): Promise<ResidentModel> {
  const dtype: DType = rt.activationDtype === 'f32' ? 'f16' : rt.activationDtype;
  let shift = 0;
  const fill = (shape: readonly number[]) => noise.fill('numbers', dtype, shape, shift++);
  tell(`${form.name}: making what is outside of blocks`);
  const { head } = options;
  const headName = `${graph.head.name}.weight`;
  const outer: BlockWeights = new Map();
  for (const [name, shape] of graph.outer) {
    if (head.kind === 'dense' || name !== headName) outer.set(name, fill(shape));
    else {
      const place = { rt, noise, dtype, shape: shape as [number, number], shift: shift++, feed: 0 };
      outer.packed = new Map([[name, packed(place, head, options)]]);
    }
  }
  const blocks: BlockWeights[] = [];
  try {
    for (const [index, block] of graph.blocks.entries()) {
      onBlock(index);
      // Linears that read one input have their blocks of 8 bits at the same places of it.
      const feeds = block.stages.flatMap((stage) => stage.feeds);
      const places = new Map(
        feeds.flatMap((feed, f) => feed.linears.map(({ name }) => [`${name}.weight` as string, f] as const)),
      );
      const weights: BlockWeights = new Map();
      blocks.push(weights);
      if (form.kind !== 'dense') weights.packed = new Map();
      for (const [name, shape] of block.tensors) {
        const feed = places.get(name);
        const experts = options.tables.get(name);
        if (experts !== undefined) {
          weights.set(name, uploadTyped(rt, 'i32', shape, expertsInTurn(shape, experts)));
          continue;
        }
        if (form.kind !== 'dense' && feed !== undefined) {
          const place = { rt, noise, dtype, shape: shape as [number, number], shift: shift++, feed };
          weights.packed?.set(name, packed(place, form, options));
        } else weights.set(name, fill(shape));
      }
      await joinSiblings(rt, block, weights);
      stackExperts(rt, block, weights);
      await rt.sync();
    }
  } catch (error) {
    for (const weights of [outer, ...blocks]) disposeWeights(weights);
    throw error;
  }
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

/** One after another, so that those of a row differ. */
function expertsInTurn(shape: readonly number[], experts: number): Int32Array {
  return Int32Array.from({ length: shape.reduce((all, dim) => all * dim, 1) }, (_, i) => i % experts);
}

/** Bytes of the tensors. */
export function weightBytes(weights: BlockWeights): number {
  const stacked = [...(weights.stacked?.values() ?? [])];
  const packed = [...(weights.packed?.values() ?? []), ...stacked.map(({ packed }) => packed)];
  const tensors = [
    ...packed.flatMap((each) => Object.values(tensorsOf(each))),
    ...stacked.flatMap(({ bias }) => bias ?? []),
  ];
  return [...weights.values(), ...tensors].reduce((sum, tensor) => sum + tensor.byteLength, 0);
}

interface Place {
  readonly rt: NativeRuntime;
  readonly noise: Noise;
  readonly dtype: DType;
  readonly shape: readonly [number, number];
  readonly shift: number;
  /** Number of what it reads in its block. */
  readonly feed: number;
}

function packed(place: Place, form: PackedForm, options: WeightOptions): PackedWeight {
  return form.kind === 'type' ? weightOfType(place, form, options.group) : WEIGHTS[form.kind](place, options);
}

const WEIGHTS: Readonly<
  Record<Exclude<PackedForm['kind'], 'type'>, (place: Place, options: WeightOptions) => PackedWeight>
> = {
  w4ax: (place, { int4Share }) => weightOfBlocks(place, int4Share),
  'w4ax-integer': (place, { int4Share }) => {
    const { scales, ...blocks } = weightOfBlocks(place, int4Share);
    scales.dispose();
    const { scales: rows, groups } = scalesOfTwoLevels(place);
    return { ...blocks, scales: rows, groups };
  },
  w4a8: weightOfTwoLevels,
  w8a8: (place) => weightOfBytes(place, 'w8a8'),
  fp8: (place) => weightOfBytes(place, 'fp8'),
};

function weightOfType(
  { rt, noise, dtype, shape, shift }: Place,
  { type, codes }: Extract<PackedForm, { kind: 'type' }>,
  group: number,
): PackedWeight {
  const [n, k] = shape;
  const [down, across] = [Math.ceil(n / BLOCK_N), Math.ceil(k / BLOCK_K)];
  const zero = type.kind === 'int' && !type.signed ? 2 ** (type.bits - 1) : 0;
  const scaleShape = [down, group === 0 ? 1 : Math.ceil(k / group), BLOCK_N];
  const weight: TilusWeight = {
    kernel: tilusKernel,
    shape,
    type: typeParams(type),
    groupSize: group,
    zero,
    weights: noise.fill(
      type.kind === 'float' && type.special !== 'none' ? 'finite' : 'codes',
      'u8',
      [down, across, (BLOCK_N * BLOCK_K * type.bits) / 8],
      shift,
    ),
    scales: halves(rt, dtype, scalesOf(rt, scaleShape, rootMeanSquare(type, zero), k)),
  };
  return codes ? byCodes(weight, codes) : weight;
}

/** Root mean squares of the random codes of 4 bits, those times FACTOR, of i8 and of f8e4m3. */
const FACTOR = 9;
const SIZES = { w4ax: 4.6, w4a8: 4.6 * FACTOR, w8a8: 74, fp8: 110 } as const;

/** Of the numbers of all codes, those that are none left out. */
function rootMeanSquare(type: QuantType, zero: number): number {
  const numbers = Array.from({ length: 2 ** type.bits }, (_, code) => decodeCode(type, code) - zero).filter(
    Number.isFinite,
  );
  return Math.sqrt(numbers.reduce((sum, number) => sum + number ** 2, 0) / numbers.length);
}

/** `from` f32 in 16 bits; takes it. */
function halves(rt: NativeRuntime, dtype: DType, from: Tensor): Tensor {
  const to = rt.allocate(dtype, from.shape);
  ops.cast(rt, from, to);
  from.dispose();
  return to;
}

/** A scale for every row or block, so that products stay as large as what is multiplied: what overflows has no codes. */
function scalesOf(rt: NativeRuntime, shape: readonly number[], size: number, k: number): Tensor {
  const count = shape.reduce((all, each) => all * each, 1);
  return uploadTyped(rt, 'f32', shape, new Float32Array(count).fill(1 / (size * Math.sqrt(k))));
}

function weightOfBytes({ rt, noise, shape, shift }: Place, kind: 'w8a8' | 'fp8'): PackedWeight {
  const [n, k] = shape;
  return {
    kernel: w8a8Kernel,
    shape,
    type: typeParams(quantType(kind === 'w8a8' ? 'i8' : 'f8e4m3')),
    groupSize: 0,
    weights: kind === 'w8a8' ? noise.fill('codes', 'i8', shape, shift) : noise.fill('finite', 'f8_e4m3', shape, shift),
    scales: scalesOf(rt, [n, 1], SIZES[kind], k),
  };
}

/** Layout w4a8 (docs/internals/layouts/comet.md), every group with the same factor. */
function weightOfTwoLevels({ rt, noise, shape, shift }: Place): W4a8Weight {
  const [n, k] = shape;
  const [down, across] = [Math.ceil(n / 16), k / 128];
  return {
    kernel: w4a8Kernel,
    shape,
    type: typeParams(quantType('i4')),
    groupSize: 128,
    weights: noise.fill('codes', 'u8', [down, across, 1024], shift),
    ...scalesOfTwoLevels({ rt, shape }),
  };
}

function scalesOfTwoLevels({ rt, shape: [n, k] }: Pick<Place, 'rt' | 'shape'>): { scales: Tensor; groups: Tensor } {
  const [down, across] = [Math.ceil(n / 16), k / 128];
  return {
    scales: scalesOf(rt, [n], SIZES.w4a8, k),
    groups: uploadTyped(rt, 'i8', [across, 16 * down], new Int8Array(across * 16 * down).fill(FACTOR)),
  };
}

/** Layout comet (docs/internals/layouts/comet.md), with blocks of 8 bits at places of their own for every input, and no permutation. */
function weightOfBlocks({ rt, noise, shape, shift, feed }: Place, share: number): CometWeight {
  const [n, k] = shape;
  const [down, across] = [Math.ceil(n / 16), k / 128];
  const bits = mixture(across, share, feed);
  const eights = bits.filter((each) => each === 8).length;
  let [eight, four] = [0, 0];
  const places = bits.map((each) => (each === 8 ? eight++ : ~four++));
  return {
    kernel: cometKernel,
    shape,
    type: typeParams(quantType('i4')),
    groupSize: 128,
    weights: noise.fill('codes', 'u8', [down, across, 1024], shift),
    scales: scalesOf(rt, [across, 16 * down], SIZES.w4ax, k),
    bits: uploadTyped(rt, 'u8', [across], Uint8Array.from(bits)),
    clip: uploadTyped(rt, 'f32', [across], new Float32Array(across).fill(1)),
    blocks: uploadTyped(rt, 'i32', [across], Int32Array.from(places)),
    inBytes: uploadTyped(rt, 'i32', [across], placesInBytes(across)),
    eights,
  };
}

/** `share` of `count` blocks of 4 bits, the others at places drawn with `seed`. */
export function mixture(count: number, share: number, seed: number): (4 | 8)[] {
  const bits = Array.from({ length: count }, (_, i): 4 | 8 => (i < Math.round(share * count) ? 4 : 8));
  let state = seed >>> 0;
  for (let i = count - 1; i > 0; i--) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    const other = Math.floor((state / 2 ** 32) * (i + 1));
    [bits[i], bits[other]] = [bits[other] as 4 | 8, bits[i] as 4 | 8];
  }
  return bits;
}
