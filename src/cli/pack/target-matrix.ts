import { LpqError } from '../../core/error.js';
import { siblingsOf } from '../../pack/siblings.js';
import type { Decision } from '../../pack/target.js';
import { PACK_TARGETS, packTarget } from '../../pack/targets/index.js';
import { table } from '../terminal/table.js';
import { line } from '../terminal/terminal.js';

/** A target's word on every module, or why it takes nothing. */
export interface Column {
  readonly target: string;
  readonly decisions: ReadonlyMap<string, Decision>;
  readonly refusal: LpqError | undefined;
}

/** 'marlin,tilus' or 'all'. Throws LPQ_TARGET. */
export function targetNames(given: string): string[] {
  if (given === 'all') return PACK_TARGETS.map(({ name }) => name);
  return given.split(',').map((name) => packTarget(name.trim()).name);
}

/** Asks a target; what it refuses as a whole becomes the column's refusal. */
export function columnOf(
  target: string,
  decide: () => { decisions: ReadonlyMap<string, Decision>; refusal?: LpqError | undefined },
): Column {
  try {
    const { decisions, refusal } = decide();
    return { target, decisions, refusal };
  } catch (error) {
    if (!(error instanceof LpqError)) throw error;
    return { target, decisions: new Map(), refusal: error };
  }
}

/** Siblings of which a target takes one otherwise than another: their engine cannot fuse them. */
export function disagreements({ target, decisions }: Column): string[] {
  const seen = new Map<string, Map<string, string[]>>();
  for (const [name, decision] of decisions) {
    const key = siblingsOf(name);
    if (key === undefined) continue;
    const last = name.slice(name.lastIndexOf('.') + 1);
    const forms = seen.get(key) ?? new Map<string, string[]>();
    const form = decision.action === 'fallback' ? decision.form : decision.layout;
    forms.set(form, [...(forms.get(form) ?? []), last]);
    seen.set(key, forms);
  }
  return [...seen]
    .filter(([, forms]) => forms.size > 1)
    .map(([key, forms]) => {
      const parts = [...forms].map(([form, names]) => `${names.join(' and ')} as ${form}`);
      return `${target}: ${key.split(' ')[0]} has ${parts.join(', ')}; engines that fuse them need one form`;
    });
}

/** Rows for --json: every module and target. */
export function matrixRows(columns: readonly Column[], modules: readonly string[]): object[] {
  return modules.flatMap((name) =>
    columns.map(({ target, decisions, refusal }) => {
      const decision = decisions.get(name);
      if (!decision)
        return { name, target, action: 'refuse', reason: refusal?.message ?? '', remedy: refusal?.hint ?? '' };
      if (decision.action === 'fallback')
        return {
          name,
          target,
          action: 'fallback',
          form: decision.form,
          reason: decision.reason,
          remedy: decision.remedy,
        };
      return { name, target, action: decision.action, layout: decision.layout, notes: decision.notes };
    }),
  );
}

/** Modules by targets: ok, pad, fallback or refuse; then each reason once, with what would help. */
export function printMatrix(columns: readonly Column[], modules: readonly string[]): string {
  const word = ({ decisions }: Column, name: string) => decisions.get(name)?.action ?? 'refuse';
  const reasons = columns.flatMap((column) => {
    const { target, decisions, refusal } = column;
    const found = new Map<string, number>();
    for (const decision of decisions.values()) {
      const text =
        decision.action === 'fallback'
          ? `${decision.reason}. ${decision.remedy}`
          : decision.action === 'pad'
            ? decision.notes.join('; ')
            : '';
      if (text !== '') found.set(text, (found.get(text) ?? 0) + 1);
    }
    const lines = [...found].map(([text, count]) => `${target}, ${count} modules: ${text}`);
    if (refusal) lines.unshift(`${target}: ${refusal.message}${refusal.hint ? `. ${refusal.hint}` : ''}`);
    return [...lines, ...disagreements(column)];
  });
  const rows = modules.map((name) => [name, ...columns.map((column) => word(column, name))]);
  const body = table(['module', ...columns.map(({ target }) => target)], rows);
  return `${body}${reasons.length > 0 ? `\n${reasons.map((reason) => line`${reason}\n`).join('')}` : ''}`;
}
