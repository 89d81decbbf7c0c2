import { existsSync, readFileSync, statSync } from 'node:fs';
import { LpqError } from '../../core/error.js';
import { escapeText } from '../../report/markup.js';
import { replaceFile } from '../../report/write.js';
import { asLpqError } from '../terminal/failure.js';

/** What a verification found, of an artifact or of what another tool wrote. */
export interface Verification {
  /** What --json prints. */
  readonly result: object;
  /** What the terminal shows. */
  readonly text: string;
  readonly told: Told;
  /** LPQ_VERIFY where something is wrong. */
  readonly error: LpqError | undefined;
}

interface Told {
  readonly dir: string;
  /** Target of an artifact, kind of another tool's directory. */
  readonly kind: string;
  readonly checks: readonly { readonly name: string; readonly status: string; readonly detail?: string }[];
  readonly failures: readonly { readonly check: string; readonly module?: string; readonly message: string }[];
  readonly modules: readonly { readonly name: string; readonly ok: boolean; readonly seconds: number }[];
  readonly seconds: number;
}

/**
 * Runs a verification and writes its result as JUnit XML, also when it could not be made. Throws what `work` throws, and
 * LPQ_OUTPUT_EXISTS before it where `file` is something else.
 */
export async function withJunit(file: string, dir: string, work: () => Promise<Verification>): Promise<Verification> {
  refuseOther(file);
  let found: Verification;
  try {
    found = await work();
  } catch (thrown) {
    const error = asLpqError(thrown);
    await replaceFile(
      file,
      xml(dir, [{ name: 'artifact', cases: [failed('open', 'error', error.code, error.message)] }], 0),
    );
    throw thrown;
  }
  await replaceFile(file, junitOf(found.told));
  return found;
}

interface Case {
  readonly name: string;
  readonly seconds: number;
  readonly outcome: 'passed' | 'skipped' | 'failure' | 'error';
  readonly body: string;
}

/** The report as the JUnit XML that CI servers read: a suite of the checks, and one of the modules. */
export function junitOf({ checks, failures, modules, dir, kind, seconds }: Told): string {
  const told = (list: Told['failures']) =>
    list
      .slice(0, 100)
      .map(({ message }) => message)
      .join('\n') + (list.length > 100 ? `\nand ${list.length - 100} more` : '');
  const checkCases = checks.map(({ name, status, detail }): Case => {
    if (status === 'skipped') return { name, seconds: 0, outcome: 'skipped', body: detail ?? 'nothing to check' };
    const wrong = failures.filter(({ check }) => check === name);
    return wrong.length > 0 ? failed(name, 'failure', 'LPQ_VERIFY', told(wrong)) : passed(name, 0);
  });
  const moduleCases = modules.map(({ name, ok, seconds: time }): Case => {
    if (ok) return passed(name, time);
    const wrong = failures.filter(({ module }) => module === name);
    return { ...failed(name, 'failure', 'LPQ_VERIFY', told(wrong) || 'not verified'), seconds: time };
  });
  return xml(
    dir,
    [
      { name: `${kind} checks`, cases: checkCases },
      { name: `${kind} modules`, cases: moduleCases },
    ],
    seconds,
  );
}

function passed(name: string, seconds: number): Case {
  return { name, seconds, outcome: 'passed', body: '' };
}

function failed(name: string, outcome: 'failure' | 'error', type: string, text: string): Case {
  const [first = ''] = text.split('\n');
  return {
    name,
    seconds: 0,
    outcome,
    body: `<${outcome} type="${type}" message="${escapeText(first)}">${escapeText(text)}</${outcome}>`,
  };
}

function xml(
  dir: string,
  suites: readonly { readonly name: string; readonly cases: readonly Case[] }[],
  seconds: number,
): string {
  const counts = (cases: readonly Case[]) => {
    const of = (outcome: Case['outcome']) => cases.filter((each) => each.outcome === outcome).length;
    return `tests="${cases.length}" failures="${of('failure')}" errors="${of('error')}" skipped="${of('skipped')}"`;
  };
  const time = (value: number) => `time="${value.toFixed(3)}"`;
  const caseText = (suite: string, { name, seconds: each, outcome, body }: Case) => {
    const head = `    <testcase classname="${escapeText(suite)}" name="${escapeText(name)}" ${time(each)}`;
    if (outcome === 'passed') return `${head}/>`;
    return `${head}>${outcome === 'skipped' ? `<skipped message="${escapeText(body)}"/>` : body}</testcase>`;
  };
  return [
    '<?xml version="1.0" encoding="UTF-8"?>',
    `<testsuites name="lpq verify ${escapeText(dir)}" ${counts(suites.flatMap(({ cases }) => cases))} ${time(seconds)}>`,
    ...suites.flatMap(({ name, cases }) => [
      `  <testsuite name="${escapeText(name)}" ${counts(cases)} ${time(cases.reduce((sum, each) => sum + each.seconds, 0))}>`,
      ...cases.map((each) => caseText(name, each)),
      '  </testsuite>',
    ]),
    '</testsuites>',
    '',
  ].join('\n');
}

/** The result of an earlier run of CI may be replaced, nothing else. */
function refuseOther(file: string): void {
  if (!existsSync(file)) return;
  const found = statSync(file).isFile() ? readFileSync(file, 'utf8').slice(0, 200) : '';
  if (found.includes('<testsuites name="lpq verify')) return;
  throw new LpqError('LPQ_OUTPUT_EXISTS', `${file} already exists and is not a result of lpq verify`, {
    hint: 'Give --junit another path.',
  });
}
