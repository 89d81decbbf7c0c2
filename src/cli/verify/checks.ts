import { table } from '../terminal/table.js';
import { line } from '../terminal/terminal.js';

interface Checked {
  readonly checks: readonly {
    readonly name: string;
    readonly status: string;
    readonly count: number;
    readonly failures: number;
    readonly detail?: string;
  }[];
  readonly failures: readonly { readonly check: string; readonly message: string }[];
  readonly notes?: readonly string[];
  readonly unproved: readonly string[];
}

/** Failures that the terminal lists; --json has all. */
const SHOWN = 20;

/** What was looked at, what is wrong, and what was not proved, above the verdict. */
export function checkText({ checks, failures, notes = [], unproved }: Checked, verdict: string): string {
  const looked = checks.filter(({ status }) => status !== 'skipped');
  const left = checks.filter(({ status }) => status === 'skipped');
  const rows = looked.map(({ name, status, count, failures: wrong, detail = '' }) => {
    return [name, status, String(count), wrong > 0 ? String(wrong) : '-', detail];
  });
  const lines = failures.slice(0, SHOWN).map(({ check, message }) => line`${check}: ${message}\n`);
  if (failures.length > SHOWN) lines.push(`and ${failures.length - SHOWN} more\n`);
  return [
    table(['check', 'result', 'compared', 'wrong', ''], rows),
    ...(left.length > 0 ? [line`not checked: ${left.map(leftOut).join('; ')}\n`] : []),
    ...(lines.length > 0 ? ['\n', ...lines] : []),
    ...notes.map((sentence) => line`note: ${sentence}\n`),
    ...unproved.map((sentence) => line`not proved: ${sentence}\n`),
    `\n${verdict}\n`,
  ].join('');
}

function leftOut({ name, detail }: Checked['checks'][number]): string {
  return detail ? `${name} (${detail})` : name;
}
