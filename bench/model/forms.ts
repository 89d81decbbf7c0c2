import type { NativeRuntime } from '../../native/binding.js';
import { LpqError, notTaken } from '../../src/core/error.js';
import type { QuantType } from '../../src/core/quant-type.js';
import { multipliesCodes } from '../../src/model/packed.js';
import type { ModelPlan } from '../../src/model/plan.js';
import type { BlockWeights, ModelGraph } from '../../src/model/program.js';
import { parseTypes } from '../kernels/cases.js';
import { listed } from '../lists.js';

/**
 * What the linears of the blocks are multiplied as: `dense` in the activations' 16 bits; `type` as codes that become 16 bits in the kernel
 * (ops.gemmPacked), with `codes` after activations became codes of 8 bits and these 16 bits (`u3:i8`); `w4ax` as 4-bit codes by activations of 4 and 8 bits (ops.gemmComet),
 * `w4ax-integer` the same of a two-level grid; `w4a8` as 4-bit codes
 * of a two-level grid by i8, `w8a8` and `fp8` as i8 by i8 and f8e4m3 by
 * f8e4m3 with a scale for each row and each token (ops.gemmAct).
 */
export type WeightForm = { readonly kind: 'dense'; readonly name: string } | PackedForm;

export type PackedForm =
  | { readonly kind: 'w4ax' | 'w4ax-integer' | 'w4a8' | 'w8a8' | 'fp8'; readonly name: string }
  | { readonly kind: 'type'; readonly name: string; readonly type: QuantType; readonly codes?: 'i8' | 'f8_e4m3' };

const WHOLE = ['dense', 'w4ax', 'w4ax-integer', 'w4a8', 'w8a8', 'fp8'] as const;

/** Codes of activations, by the names of their types. */
const ACTIVATIONS = [
  ['i8', 'i8'],
  ['f8e4m3', 'f8_e4m3'],
] as const;

/** --weights. Throws LPQ_USAGE, LPQ_TYPE. */
export function parseForms(text: string): WeightForm[] {
  return listed(
    '--weights',
    text,
    ({ name }) => name,
    (item): WeightForm | WeightForm[] => {
      const kind = WHOLE.find((each) => each === item);
      if (kind) return { kind, name: item };
      const [types, act, ...more] = item.split(':');
      const codes = ACTIVATIONS.find(([name]) => name === act)?.[1];
      if (more.length > 0 || (act !== undefined && codes === undefined))
        throw notTaken('--weights', item, 'a form, or TYPE:i8 or TYPE:f8e4m3 for activations of 8 bits');
      return parseTypes(types as string).map((type) =>
        codes ? { kind: 'type', name: `${type.name}:${act}`, type, codes } : { kind: 'type', name: type.name, type },
      );
    },
  );
}

/** --head: one form. Throws LPQ_USAGE, LPQ_TYPE. */
export function parseHead(text: string): WeightForm {
  const [form, ...more] = parseForms(text);
  if (form === undefined || more.length > 0) throw notTaken('--head', text, 'one of the forms of --weights');
  return form;
}

/** Input features of a linear come in such runs. */
const RUNS = { w4ax: 128, 'w4ax-integer': 128, w4a8: 128, w8a8: 16, fp8: 16 } as const;

/** Throws LPQ_DEVICE where the device has no kernel for a form, LPQ_USAGE for shapes that its layout does not take. */
export function requireForm(rt: NativeRuntime, graph: ModelGraph, shape: string, { kind, name }: WeightForm): void {
  if (kind === 'dense' || kind === 'type') return;
  if (!multipliesCodes(rt))
    throw new LpqError('LPQ_DEVICE', `--weights ${name}: this device has no kernel that multiplies codes by codes`, {
      got: rt.device,
      expected: 'cpu, or a device of compute capability 9.0',
      hint: 'Leave it out of --weights.',
    });
  const linears = graph.blocks.flatMap(({ stages }) => stages.flatMap(({ feeds }) => feeds.flatMap((f) => f.linears)));
  const odd = linears.find(({ k }) => k % RUNS[kind] !== 0);
  if (odd)
    throw new LpqError('LPQ_USAGE', `--weights ${name} does not fit ${shape}: '${odd.name}' has ${odd.k} inputs`, {
      got: odd.k,
      expected: `a multiple of ${RUNS[kind]}`,
      hint: 'Leave it out of --weights.',
    });
}

/** Throws LPQ_USAGE where the head is the embedding, which is read row by row. */
export function requireHead(graph: ModelGraph, shape: string, { kind, name }: WeightForm): void {
  if (kind === 'dense' || !graph.head.tied) return;
  throw new LpqError('LPQ_USAGE', `--head ${name} does not fit ${shape}: its lm_head is the embedding`, {
    hint: 'Leave out --head, or use the shape of a model whose lm_head is a weight of its own.',
  });
}

/** How many experts there are to choose from in the tables that name those of a token's id, by the tables' names. */
export function expertTables({ blocks }: ModelPlan): Map<string, number> {
  return new Map(
    blocks.flatMap(({ mlp }) => {
      const table = mlp.kind === 'experts' ? mlp.routing.root?.table : undefined;
      return table && mlp.kind === 'experts' ? [[table.name, mlp.experts.length] as const] : [];
    }),
  );
}

/** Whether a step reads back how many rows each expert has while it is enqueued: experts that are not stacked. */
export function readsCounts({ blocks }: ModelPlan, weights: readonly BlockWeights[]): boolean {
  return blocks.some(({ mlp }, i) => mlp.kind === 'experts' && (weights[i]?.stacked?.size ?? 0) < 2);
}
