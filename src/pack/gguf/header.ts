import { plainDtype } from '../../../formats/canonical/dequantize.js';
import { compareNatural } from '../../../formats/canonical/order.js';
import type { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { type GgufMetadata, type GgufValue, text, u32 } from '../../../formats/gguf/metadata.js';
import { ggufOrder } from '../../../formats/gguf/names.js';
import { type GgufTypeName, ggufType } from '../../../formats/gguf/types.js';
import type { GgufTensorPlan } from '../../../formats/gguf/write.js';
import { LpqError } from '../../core/error.js';
import type { PackPlan } from '../plan.js';
import type { CarriedPlan } from './carried.js';
import { type GgufContext, halvesOf } from './context.js';
import type { Weighting } from './importance.js';

/** Every tensor of the file, in its order; experts stacked. */
export function tensorPlans(plan: PackPlan, context: GgufContext, carried: readonly CarriedPlan[]): GgufTensorPlan[] {
  const plans = new Map<string, { type: GgufTypeName; shape: readonly number[]; slices: number }>();
  const add = (full: string, type: GgufTypeName, shape: readonly number[]): void => {
    const stack = /^(.*)\[\d+\]$/.exec(full)?.[1];
    const known = plans.get(stack ?? full);
    if (known && (known.type !== type || `${known.shape}` !== `${shape}`))
      throw new LpqError('LPQ_PACK', `the experts of ${stack} differ in type or shape`, {
        got: `${known.type} [${known.shape}] and ${type} [${shape}]`,
        hint: 'Quantize all experts of a block, or none.',
      });
    plans.set(stack ?? full, { type, shape, slices: stack === undefined ? 0 : (known?.slices ?? 0) + 1 });
  };
  for (const [name, decision] of plan.decisions) {
    const { shape, sourceDtype } = plan.checkpoint.module(name);
    const type = decision.action === 'fallback' ? plainDtype(sourceDtype).toLowerCase() : decision.layout.slice(5);
    for (const { name: half, rows } of halvesOf(context.place(name), shape[0]))
      add(half, type as GgufTypeName, [rows, shape[1]]);
  }
  for (const { name, type, shape } of carried) add(name, type, shape);
  const { names } = context.model;
  for (const [name, factors] of context.model.ropeTensors) add(name, 'f32', [factors.length]);
  return [...plans]
    .sort(([a], [b]) => ggufOrder(names, a) - ggufOrder(names, b) || compareNatural(a, b))
    .map(([name, { type, shape, slices }]) => {
      const { experts, plan: whole } = context.model;
      const expected = name.startsWith('blk.') ? experts : (whole.streams?.into.length ?? 0);
      if (slices > 0 && slices !== expected)
        throw new LpqError('LPQ_TENSOR_MISSING', `${name} is a stack of ${slices}`, { expected });
      return { name, type, shape: slices > 0 ? [slices, ...shape] : shape };
    });
}

/** The keys of the file: what it is, the model, numbers of blocks (scalarEntries), the tokenizer; `sourced`: searched in the weights of --source. */
export function fileMetadata(
  input: CanonicalCheckpoint,
  context: GgufContext,
  tokenizer: GgufMetadata,
  tensors: readonly GgufTensorPlan[],
  scalars: readonly (readonly [key: string, value: GgufValue])[],
  sourced: boolean,
  weighting?: Weighting,
): GgufMetadata {
  const counts = new Map<GgufTypeName, number>();
  for (const { name, type, shape } of tensors)
    if (name.startsWith('blk.') && shape.length > 1)
      counts.set(type, (counts.get(type) ?? 0) + shape.reduce((a, b) => a * b, 1));
  const [main = 'f32'] = [...counts].sort((a, b) => b[1] - a[1]).map(([type]) => type);
  const { provenance } = input.manifest;
  const [architecture, ...rest] = context.model.metadata;
  return new Map([
    architecture!,
    ['general.type', text('model')],
    ['general.name', text(provenance.source.name)],
    ['general.quantized_by', text(`lpq ${provenance.lpq}`)],
    ['general.file_type', u32(ggufType(main).fileType)],
    ['general.quantization_version', u32(2)],
    ['lpq.blocks_from', text(context.search === undefined ? 'codes' : sourced ? 'source' : 'quantized')],
    ...(weighting?.metadata ?? []),
    ...rest,
    ...scalars,
    ...tokenizer,
  ]);
}
