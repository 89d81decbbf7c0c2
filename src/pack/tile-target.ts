import type { CanonicalModule } from '../../formats/canonical/schema.js';
import type { Tensor } from '../../native/binding.js';
import type { NoForm } from './integer-form.js';
import { partOf, partOperands } from './parallel.js';
import type { Decision, ModuleFacts, PackJob, PackTarget } from './target.js';
import { fits, type Operands, type PackLayout, type TileFit } from './tile-layout.js';

/** A layout that was chosen, and why in one sentence (none where the target has no choice). */
export interface Choice {
  readonly layout: PackLayout;
  readonly fit: TileFit;
  readonly why?: string;
}

export type Choose = (name: string, module: CanonicalModule, facts: ModuleFacts) => Choice | NoForm;

/** A target whose modules are fragments for lpq's kernels; it can give each rank of tensor parallelism its part. */
export function tileTarget(
  name: string,
  describe: string,
  choose: Choose,
  more: Pick<PackTarget, 'activations'> = {},
): PackTarget {
  const part = (module: CanonicalModule, facts: ModuleFacts): CanonicalModule =>
    facts.ranks ? partOf(module, facts.ranks) : module;
  return {
    name,
    describe,
    tensorParallel: true,
    ...more,

    plan(moduleName, module, facts): Decision {
      const choice = choose(moduleName, part(module, facts), facts);
      if (!('fit' in choice)) return { action: 'fallback', form: 'carried', ...choice };
      const { layout, fit, why } = choice;
      const ranks = facts.ranks && 'count' in facts.ranks ? facts.ranks : undefined;
      const prefixes = ranks ? Array.from({ length: ranks.count }, (_, rank) => `.rank${rank}`) : [''];
      const shape = part(module, facts).shape;
      return {
        action: fit.padded[0] !== shape[0] || fit.padded[1] !== shape[1] ? 'pad' : 'ok',
        layout: layout.name,
        padded: fit.padded,
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
      const whole = operandsOf(job);
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
      for (const key of ['codes', 'scales', 'zeros', 'groupIndex', 'permutation', 'mask'] as const)
        whole[key]?.dispose();
      return out;
    },

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
  };
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

function operandsOf({ rt, checkpoint, name, module }: PackJob): Operands {
  const integers = module.zeros.kind === 'int' || module.zeros.kind === 'float';
  return {
    rt,
    name,
    module,
    codes: checkpoint.require(name, 'codes'),
    scales: checkpoint.require(name, 'scales'),
    zeros: integers ? checkpoint.require(name, 'zeros') : undefined,
    groupIndex: checkpoint.part(name, 'g_idx'),
    permutation: checkpoint.part(name, 'permutation'),
    mask: checkpoint.part(name, 'mask'),
  };
}
