import type { ForeignModule } from '../../../../formats/foreign/module.js';
import type { TensorReader } from '../../../../formats/safetensors/read.js';
import { tell } from '../../../core/activity.js';
import { printGranularity } from '../../../core/granularity.js';
import type { Findings } from './finding.js';

/** Linears that loaders run as one, so that they need one scheme. */
const FUSED: readonly (readonly string[])[] = [
  ['q_proj', 'k_proj', 'v_proj'],
  ['q_a_proj', 'kv_a_proj_with_mqa'],
  ['gate_proj', 'up_proj'],
  ['w1', 'w3'],
];

/** Tells of q/k/v and gate/up that are quantized differently, or of which only some are. */
export function diagnoseSiblings(modules: readonly ForeignModule[], weights: TensorReader, findings: Findings): void {
  const byName = new Map(modules.map((module) => [module.name, module]));
  let sets = 0;
  const seen = new Set<string>();
  for (const { name } of modules) {
    const dot = name.lastIndexOf('.');
    const [parent, last] = [name.slice(0, dot + 1), name.slice(dot + 1)];
    const set = FUSED.find((each) => each.includes(last));
    if (!set || seen.has(parent + set[0])) continue;
    seen.add(parent + set[0]);
    const there = set.filter((part) => byName.has(parent + part) || weights.has(`${parent}${part}.weight`));
    if (there.length < 2) continue;
    sets++;
    tell(`comparing ${parent}{${there.join(', ')}}`);
    compare(parent, there, byName, findings);
  }
  findings.looked('siblings', `${sets} sets that loaders fuse (q/k/v, gate/up)`);
}

function compare(
  parent: string,
  parts: readonly string[],
  byName: ReadonlyMap<string, ForeignModule>,
  findings: Findings,
): void {
  const own = parts.map((part) => byName.get(parent + part));
  const described = own.map((module) => (module ? scheme(module) : 'not quantized'));
  const names = `${parent}{${parts.join(', ')}}`;
  if (new Set(described).size > 1) {
    findings.add('siblings', 'problem', `${names}, which loaders fuse, are quantized differently`, {
      got: parts.map((part, i) => `${part}: ${described[i]}`).join('; '),
      remedy: 'Quantize them with one scheme, or skip all of them.',
    });
    return;
  }
  const modules = own as ForeignModule[];
  if (modules[0]?.declaration.groupIndex && differ(modules, 'g_idx'))
    findings.add('siblings', 'warning', `${names} have different g_idx, but read the same activation`, {
      remedy: 'Loaders that fuse them refuse them, or run them separately.',
    });
  if (modules[0]?.declaration.scales.global && differ(modules, 'global_scale'))
    findings.add('siblings', 'warning', `${names} have different weight_global_scale`, {
      remedy: 'Loaders that fuse them use one for all, which costs accuracy.',
    });
}

function differ(modules: readonly ForeignModule[], part: 'g_idx' | 'global_scale'): boolean {
  const [first, ...rest] = modules.map((module) => {
    const data = module.decode(part);
    return Buffer.from(data.buffer, data.byteOffset, data.byteLength);
  });
  return rest.some((data) => first?.compare(data) !== 0);
}

function scheme({ declaration: { type, granularity, zeros, groupIndex, scales } }: ForeignModule): string {
  const order = groupIndex ? ', act-order' : '';
  return `${type}, groups of ${printGranularity(granularity)}, ${zeros.kind === 'int' ? 'asymmetric' : 'symmetric'}, ${scales.dtype} scales${order}`;
}
