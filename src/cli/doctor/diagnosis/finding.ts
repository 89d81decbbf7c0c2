import type { LpqError } from '../../../core/error.js';

/** What is looked at, in this order. */
export const CHECKS = ['files', 'settings', 'modules', 'zeros', 'scales', 'siblings', 'model'] as const;
export type CheckName = (typeof CHECKS)[number];

/** One thing that is wrong (problem: it cannot be read, or others read it wrongly), or odd (warning). */
export interface Diagnosis {
  readonly check: CheckName;
  readonly severity: 'problem' | 'warning';
  readonly message: string;
  readonly got?: unknown;
  readonly expected?: unknown;
  readonly remedy?: string;
}

/** Collects findings; a check that ran without any is fine. */
export class Findings {
  readonly list: Diagnosis[] = [];
  private readonly ran = new Map<CheckName, string>();

  /** Says that a check was made, with what it looked at. */
  looked(check: CheckName, at: string): void {
    this.ran.set(check, at);
  }

  add(
    check: CheckName,
    severity: Diagnosis['severity'],
    message: string,
    facts: Pick<Diagnosis, 'got' | 'expected' | 'remedy'> = {},
  ): void {
    if (!this.ran.has(check)) this.ran.set(check, '');
    this.list.push({ check, severity, message, ...facts });
  }

  /** A designed error as a problem. One that another check ran into is told there; this check did not take place. */
  error(check: CheckName, { message, got, expected, hint }: LpqError): void {
    if (this.list.some((told) => told.message === message)) return;
    this.add(check, 'problem', message, {
      ...(got !== undefined && { got }),
      ...(expected !== undefined && { expected }),
      ...(hint !== undefined && { remedy: hint }),
    });
  }

  checks(): { name: CheckName; status: 'ok' | 'warning' | 'problem'; found: string }[] {
    return CHECKS.filter((name) => this.ran.has(name)).map((name) => {
      const own = this.list.filter(({ check }) => check === name);
      const problems = own.filter(({ severity }) => severity === 'problem').length;
      const at = this.ran.get(name) as string;
      const told = own.length === 0 ? '' : `${problems} problems, ${own.length - problems} warnings`;
      return {
        name,
        status: problems > 0 ? 'problem' : own.length > 0 ? 'warning' : 'ok',
        found: [at, told].filter((part) => part !== '').join(': '),
      };
    });
  }
}
