import { modelDirectory } from '../options/hub.js';
import type { Run } from '../run.js';
import { shown } from '../terminal/print-error.js';
import { colorOn, line, paint } from '../terminal/terminal.js';

/** Findings that the terminal lists; --json has all. */
const SHOWN = 40;

/** `lpq doctor DIR`: what is wrong with a checkpoint. Exit 4 when something is. */
export async function doctorDirectory(given: string, run: Run): Promise<void> {
  const dir = await modelDirectory(given, run);
  const { diagnoseDirectory } = await import('./diagnosis/diagnose.js');
  const { kind, findings } = await diagnoseDirectory(dir, () => run.interrupt.check());
  const checks = findings.checks();
  const ok = !findings.list.some(({ severity }) => severity === 'problem');
  const color = colorOn(process.stdout);
  const mark = {
    ok: paint('ok     ', 'green', color),
    warning: paint('warning', 'yellow', color),
    problem: paint('problem', 'red', color),
  };
  const lines = checks.map(({ name, status, found }) => line`${name.padEnd(8)}  ${mark[status]}  ${found}\n`);
  const told = findings.list.slice(0, SHOWN).map(({ check, severity, message, got, expected, remedy }) => {
    const facts = [
      ['got', got],
      ['expected', expected],
      ['do', remedy],
    ].filter(([, value]) => value !== undefined);
    const rows = facts.map(([label, value]) => line`         ${String(label).padEnd(8)}  ${shown(value)}\n`);
    return line`\n${mark[severity]}  ${check}: ${message}\n` + rows.join('');
  });
  if (findings.list.length > SHOWN) told.push(`\nand ${findings.list.length - SHOWN} more\n`);
  const verdict = ok
    ? findings.list.length === 0
      ? line`${dir} (${kind}): nothing is wrong\n`
      : line`${dir} (${kind}): can be read, with ${findings.list.length} warnings\n`
    : line`${dir} (${kind}): something is wrong\n`;
  run.report.result(
    { ok, dir, kind, checks, findings: findings.list },
    `${lines.join('')}${told.join('')}\n${verdict}`,
  );
  if (!ok) run.exit = 4;
}
