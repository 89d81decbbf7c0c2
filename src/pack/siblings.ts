import type { CanonicalModule } from '../../formats/canonical/schema.js';
import type { ModuleFacts, PackTarget } from './target.js';

/** Linears that engines and kernels fuse, by the last part of their names. */
const FUSED = [
  ['q_proj', 'k_proj', 'v_proj'],
  ['gate_proj', 'up_proj'],
  ['w1', 'w3'],
];

/** What the siblings of a module share; undefined for a module that nothing fuses. */
export function siblingsOf(name: string): string | undefined {
  const cut = name.lastIndexOf('.');
  const family = FUSED.findIndex((names) => names.includes(name.slice(cut + 1)));
  return family < 0 ? undefined : `${name.slice(0, cut)} ${family}`;
}

/**
 * The targets in turn, best first, of which the first gives all siblings of one type the same layout; the last one does so always. A
 * module without siblings gets the first target. The result packs under the first one's name.
 */
export function oneLayoutForSiblings(
  [first, ...others]: readonly [PackTarget, ...PackTarget[]],
  modules: ReadonlyMap<string, { readonly module: CanonicalModule; readonly facts: ModuleFacts }>,
): PackTarget {
  const families = new Map<string, string[]>();
  for (const [name, { module }] of modules) {
    const siblings = siblingsOf(name);
    if (siblings === undefined) continue;
    const key = `${siblings} ${module.type} ${JSON.stringify(module.granularity)}`;
    families.set(key, [...(families.get(key) ?? []), name]);
  }
  const layout = (target: PackTarget, name: string) => {
    const { module, facts } = modules.get(name) as { module: CanonicalModule; facts: ModuleFacts };
    const decision = target.plan(name, module, facts);
    return decision.action === 'fallback' ? decision.form : decision.layout;
  };
  const chosen = new Map<string, PackTarget>();
  for (const names of families.values()) {
    const alike = (target: PackTarget) => new Set(names.map((name) => layout(target, name))).size === 1;
    const target = alike(first) ? first : (others.find(alike) ?? first);
    for (const name of names) chosen.set(name, target);
  }
  const of = (name: string) => chosen.get(name) ?? first;
  return {
    ...first,
    plan: (name, module, facts) => of(name).plan(name, module, facts),
    pack: (job) => of(job.name).pack(job),
  };
}
