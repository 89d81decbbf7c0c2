import type { CanonicalModule } from '../../formats/canonical/schema.js';
import type { DType, Tensor } from '../../native/binding.js';
import type { NoForm } from './integer-form.js';
import { type Fit, fits, type Operands, type PackLayout } from './layout.js';
import { partOf, partOperands } from './parallel.js';
import type { Decision, Fallback, ModuleFacts, PackJob, PackTarget } from './target.js';

/** A layout that was chosen, and why in one sentence (none where the target has no choice). */
export interface Choice {
  readonly layout: PackLayout;
  readonly fit: Fit;
  readonly why?: string;
}

export type Choose = (name: string, module: CanonicalModule, facts: ModuleFacts) => Choice | NoForm;

/** A target of one or several layouts. What it does not take is `left` in canonical form or as a plain weight. */
export function layoutTarget({
  left,
  choose,
  ...rest
}: Omit<PackTarget, 'plan' | 'pack'> & {
  readonly left: Fallback['form'];
  readonly choose: Choose;
}): PackTarget {
  const part = (module: CanonicalModule, facts: ModuleFacts): CanonicalModule =>
    facts.ranks ? partOf(module, facts.ranks) : module;
  return {
    ...rest,

    plan(moduleName, module, facts): Decision {
      const choice = choose(moduleName, part(module, facts), facts);
      if (!('fit' in choice)) return { action: 'fallback', form: left, ...choice };
      const { layout, fit, why } = choice;
      const ranks = facts.ranks && 'count' in facts.ranks ? facts.ranks : undefined;
      const prefixes = ranks ? Array.from({ length: ranks.count }, (_, rank) => `.rank${rank}`) : [''];
      const shape = part(module, facts).shape;
      return {
        action: fit.padded[0] !== shape[0] || fit.padded[1] !== shape[1] ? 'pad' : 'ok',
        layout: layout.name,
        padded: fit.padded,
        ...(fit.packing && { packing: fit.packing }),
        ...(fit.inputMost !== undefined && { inputMost: fit.inputMost }),
        ...(ranks && { ranks }),
        tensors: prefixes.flatMap((prefix) =>
          fit.tensors.map(({ suffix, dtype, shape: size }) => ({
            name: `${moduleName}${prefix}.${suffix}`,
            dtype,
            shape: size,
          })),
        ),
        notes: [
          ...(why ? [why] : []),
          ...fit.notes,
          ...(ranks
            ? [
                `Split over ${ranks.count} ranks by ${ranks.split === 'n' ? 'output' : 'input'} features: ${shape.join(' x ')} each.`,
              ]
            : facts.ranks && 'whole' in facts.ranks
              ? [`Every rank has it whole, because ${facts.ranks.whole}.`]
              : []),
        ],
      };
    },

    async pack(job): Promise<Map<string, Tensor>> {
      const { name: moduleName, module, plan, facts } = job;
      const split = facts.ranks ?? { whole: '' };
      const choice = choose(moduleName, part(module, facts), facts) as Choice;
      const whole = operandsOf(job, choice.layout.codes);
      const out = new Map<string, Tensor>();
      const count = plan.ranks?.count ?? 1;
      for (let rank = 0; rank < count; rank++) {
        const operands = partOperands(whole, split, rank);
        const tensors = await choice.layout.pack(operands, choice.fit);
        const prefix = plan.ranks ? `.rank${rank}` : '';
        for (const [suffix, tensor] of tensors) out.set(`${moduleName}${prefix}.${suffix}`, tensor);
        for (const key of ['codes', 'scales', 'zeros', 'mask'] as const)
          if (operands[key] !== whole[key]) operands[key]?.dispose();
      }
      for (const key of PARTS) whole[key]?.dispose();
      return out;
    },
  };
}

/** A target whose modules are fragments for lpq's kernels; it can give each rank of tensor parallelism its part. */
export function tileTarget(
  name: string,
  describe: string,
  choose: Choose,
  more: Pick<PackTarget, 'activations'> = {},
): PackTarget {
  return layoutTarget({
    name,
    describe,
    tensorParallel: true,
    left: 'carried',
    choose,
    ...more,
    config: ({ ranks }) => ({
      quantization: {
        quant_method: 'lpq',
        format: 'lpq-artifact',
        version: 1,
        target: name,
        manifest: 'lpq.json',
        ...(ranks > 1 && { tensor_parallel: ranks }),
      },
      files: {},
    }),
  });
}

/** The first layout of a list that a module fits, or the last one's reason. */
export function firstFit(
  layouts: readonly PackLayout[],
  name: string,
  module: CanonicalModule,
  facts: ModuleFacts,
): Choice | NoForm {
  let last: NoForm | undefined;
  for (const layout of layouts) {
    const fit = layout.fit(name, module, facts);
    if (fits(fit)) return { layout, fit };
    last = fit;
  }
  return last!;
}

const PARTS = ['codes', 'scales', 'zeros', 'groupIndex', 'permutation', 'mask', 'globalScale'] as const;

function operandsOf({ rt, checkpoint, name, module }: PackJob, codes: DType | undefined): Operands {
  const integers = module.zeros.kind === 'int' || module.zeros.kind === 'float';
  return {
    rt,
    name,
    module,
    codes: codes ? checkpoint.weights.tensor(`${name}.codes`, codes) : checkpoint.require(name, 'codes'),
    scales: checkpoint.require(name, 'scales'),
    zeros: integers ? checkpoint.require(name, 'zeros') : undefined,
    groupIndex: checkpoint.part(name, 'g_idx'),
    permutation: checkpoint.part(name, 'permutation'),
    mask: checkpoint.part(name, 'mask'),
    globalScale: checkpoint.part(name, 'global_scale'),
  };
}
