import type { CanonicalModule } from '../../formats/canonical/schema.js';
import type { ModuleDeclaration } from '../../formats/canonical/tensors.js';
import { quantType } from '../core/quant-type.js';
import { ggufModel, namesOf } from '../model/gguf/model.js';
import { splitOf } from './parallel.js';
import { noRanks, refusal } from './plan.js';
import { rolesOf } from './roles.js';
import type { Decision, ModuleFacts, PackTarget } from './target.js';
import { packTarget } from './targets/index.js';

/** A checkpoint before it is quantized: what its modules will be. */
export interface PlannedCheckpoint {
  readonly dir: string;
  readonly config: Readonly<Record<string, unknown>>;
  readonly modules: ReadonlyMap<string, ModuleDeclaration>;
}

/**
 * Refuses what packing for a target would refuse whatever the codes turn out to be, so that nobody quantizes for hours
 * first: throws LPQ_TARGET where it takes no module of these types, groups and scales, or, for GGUF, not the model.
 */
export function previewPack(planned: PlannedCheckpoint, targetName: string): void {
  const { target, decisions } = previewDecisions(planned, targetName);
  const weights = [...planned.modules.keys()].map((name) => `${name}.weight`);
  const refused = refusal(planned.dir, target, decisions, rolesOf(planned.config, weights), 1);
  if (refused) throw refused;
}

/** What a target would do with each module, in whole or for `ranks` ranks. Throws LPQ_TARGET, LPQ_USAGE. */
export function previewDecisions(
  { dir, config, modules }: PlannedCheckpoint,
  targetName: string,
  ranks = 1,
): { target: PackTarget; decisions: Map<string, Decision> } {
  const wanted = packTarget(targetName);
  const module = (name: string): CanonicalModule => ({ ...(modules.get(name) as ModuleDeclaration), sha256: {} });
  const split = (name: string) => (ranks > 1 ? { ranks: splitOf({ config: { ...config }, module }, name, ranks) } : {});
  const known = new Map(
    [...modules.keys()].map((name) => {
      const entry = module(name);
      return [name, { module: entry, facts: { ...split(name), ...factsOf(entry) } }] as const;
    }),
  );
  const target = wanted.resolve?.(known)?.target ?? wanted;
  if (target.bind) ggufModel(dir, config, namesOf(modules.keys(), false));
  if (ranks > 1 && !target.tensorParallel) throw noRanks(target, ranks);
  const decisions = new Map(
    [...known].map(([name, { module, facts }]) => [name, decide(target, name, module, facts)] as const),
  );
  return { target, decisions };
}

function decide(target: PackTarget, name: string, module: CanonicalModule, facts: ModuleFacts): Decision {
  if (!target.bind) return target.plan(name, module, facts);
  // Searched types of GGUF take every module whose rows are whole blocks; the others have the grids of the codes or none.
  const problem = target.preview?.(module, facts);
  if (problem) return { action: 'fallback', form: 'dense', ...problem };
  return { action: 'ok', layout: target.name, padded: module.shape, tensors: [], notes: [] };
}

/** Zero points will be codes of the type; scales of weights are seldom too small for f16. */
function factsOf(module: CanonicalModule): ModuleFacts {
  const half = module.scales.dtype === 'bf16' ? { halfScales: true } : {};
  if (module.zeros.kind !== 'int') return half;
  const { bits, signed } = quantType(module.type);
  const least = signed ? -(2 ** (bits - 1)) : 0;
  return { ...half, zeroRange: [least, least + 2 ** bits - 1] };
}
