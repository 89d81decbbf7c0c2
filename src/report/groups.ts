import type { Report, ReportModule } from '../../formats/report/schema.js';
import type { Series } from './chart.js';

/** Modules of one role in one block: one linear, or all experts' linears of that name. */
export interface Group {
  readonly block: number | null;
  readonly role: string;
  readonly modules: readonly ReportModule[];
}

/** q_proj, down_proj, ...; of experts apart from the same name outside of them. */
export function roleOf({ kind, expert }: ReportModule): string {
  return expert === null ? kind : `experts.${kind}`;
}

/** In the order of the model. */
export function groupsOf(modules: readonly ReportModule[]): Group[] {
  const groups = new Map<string, { block: number | null; role: string; modules: ReportModule[] }>();
  for (const module of modules) {
    const role = roleOf(module);
    const key = `${module.block} ${role}`;
    const group = groups.get(key) ?? { block: module.block, role, modules: [] };
    group.modules.push(module);
    groups.set(key, group);
  }
  return [...groups.values()];
}

/** The mean of what is known; null where nothing is. */
export function mean(values: readonly (number | null | undefined)[]): number | null {
  const known = values.filter((value): value is number => value !== null && value !== undefined);
  return known.length === 0 ? null : known.reduce((a, b) => a + b, 0) / known.length;
}

/** A value of each block, one series a role; groups outside of blocks have no place on the axis. */
export function seriesOf(
  modules: readonly ReportModule[],
  value: (group: Group) => number | null,
  words: (value: number) => string,
): Series[] {
  const series = new Map<string, { x: number; y: number; title: string }[]>();
  for (const group of groupsOf(modules)) {
    const y = value(group);
    if (group.block === null || y === null) continue;
    const points = series.get(group.role) ?? [];
    points.push({ x: group.block, y, title: `block ${group.block} ${group.role}: ${words(y)}` });
    series.set(group.role, points);
  }
  return [...series].map(([label, points]) => ({ label, points }));
}

/** Tokens that each expert of each block saw: of its first linear. */
export function expertTokens(report: Report): { label: string; values: (number | null)[] }[] {
  const blocks = new Map<number, (number | null)[]>();
  for (const { block, expert, tokens } of report.modules) {
    if (block === null || expert === null || tokens === null) continue;
    const row = blocks.get(block) ?? [];
    while (row.length <= expert) row.push(null);
    row[expert] ??= tokens;
    blocks.set(block, row);
  }
  return [...blocks].map(([block, values]) => ({ label: `block ${block}`, values }));
}
