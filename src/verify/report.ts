import { LpqError } from '../core/error.js';
import type { VerifyOptions } from './verify.js';

/**
 * What is checked. manifest: lpq.json against its seal; files, tensors: presence, shapes, hashes; config: agreement of
 * quantization_config; padding: fields that hold no weight; canonical: decoded bytes against the manifest's canonical
 * hashes; carried: tensors that pass through; against: everything, byte by byte, with a canonical checkpoint; emulator:
 * a kernel's reads and arithmetic; kernel: the kernel itself, on a device; kv: the packed cache of keys and values, on random data; end-to-end: what the
 * whole model computes.
 */
export const CHECKS = [
  'manifest',
  'files',
  'tensors',
  'config',
  'padding',
  'canonical',
  'carried',
  'against',
  'emulator',
  'kernel',
  'kv',
  'end-to-end',
] as const;
export type CheckName = (typeof CHECKS)[number];

/** One difference. row is an output feature n, column an input feature k (for scales and zeros: a group). */
export interface VerifyFailure {
  readonly check: CheckName;
  readonly module?: string;
  readonly tensor?: string;
  readonly row?: number;
  readonly column?: number;
  readonly got?: string | number;
  readonly expected?: string | number;
  readonly message: string;
  /** What to do, where it is not to pack again. */
  readonly hint?: string;
}

export interface VerifyCheck {
  readonly name: CheckName;
  /** skipped: nothing to check, or not asked for; `detail` says which. */
  readonly status: 'passed' | 'failed' | 'skipped';
  /** Comparisons made: files, tensors, hashes or emulated strips. */
  readonly count: number;
  readonly failures: number;
  readonly detail?: string;
}

export interface ModuleReport {
  readonly name: string;
  readonly layout: string;
  readonly type: string;
  readonly shape: readonly [number, number];
  readonly ok: boolean;
  readonly seconds: number;
  /** Largest |emulated - fp64| / bound over the outputs, of modules that were emulated. */
  readonly emulatorRatio?: number;
  /** The same of the kernel itself, of modules that one was run on. */
  readonly kernelRatio?: number;
}

export interface VerifyReport {
  readonly ok: boolean;
  readonly dir: string;
  readonly against: string | null;
  readonly target: string;
  readonly seed: number;
  readonly checks: readonly VerifyCheck[];
  readonly failures: readonly VerifyFailure[];
  readonly modules: readonly ModuleReport[];
  /** What a wrong byte could hide in, one sentence each; empty when every byte is proved. */
  readonly unproved: readonly string[];
  /** What is odd and no fault of the artifact, one sentence each: a README of the publisher's, a model without some tensors. */
  readonly notes: readonly string[];
  /** What was found of the whole model, where that was asked for. */
  readonly endToEnd?: object | undefined;
  readonly seconds: number;
}

/** Collects comparisons and differences while a verification runs. */
export class Recorder {
  readonly failures: VerifyFailure[] = [];
  readonly unproved: string[] = [];
  readonly notes: string[] = [];
  private readonly counts = new Map<CheckName, number>();
  private readonly details = new Map<CheckName, string>();

  /** A comparison was made. */
  count(check: CheckName, by = 1): void {
    this.counts.set(check, (this.counts.get(check) ?? 0) + by);
  }

  /** Counts a comparison, and records `failure` when it came out wrong. */
  check(ok: boolean, failure: VerifyFailure): boolean {
    this.count(failure.check);
    if (!ok) this.failures.push(failure);
    return ok;
  }

  /** Something that differs and is no failure; once. */
  note(sentence: string): void {
    if (!this.notes.includes(sentence)) this.notes.push(sentence);
  }

  detail(check: CheckName, text: string): void {
    this.details.set(check, text);
  }

  checks(): VerifyCheck[] {
    return CHECKS.map((name) => {
      const failures = this.failures.filter(({ check }) => check === name).length;
      const count = this.counts.get(name) ?? 0;
      const detail = this.details.get(name);
      const status = failures > 0 ? 'failed' : count > 0 ? 'passed' : 'skipped';
      return { name, status, count, failures, ...(detail !== undefined && { detail }) };
    });
  }

  /** Everything that was found since `started`. */
  report(
    { dir, against, opened, seed = 0 }: VerifyOptions,
    target: string,
    modules: readonly ModuleReport[],
    started: number,
    endToEnd?: object,
  ): VerifyReport {
    const { failures, unproved, notes } = this;
    return {
      ok: failures.length === 0,
      ...{ dir, against: opened?.dir ?? against ?? null, target, seed },
      ...{ checks: this.checks(), failures, modules, unproved, notes },
      ...(endToEnd && { endToEnd }),
      seconds: (performance.now() - started) / 1000,
    };
  }
}

/** The report as the error that a command ends with (exit code 1). Undefined when everything agreed. */
export function verificationError(report: VerifyReport): LpqError | undefined {
  const first = report.failures.find(({ row }) => row !== undefined) ?? report.failures[0];
  if (!first) return undefined;
  const more = report.failures.length - 1;
  return new LpqError('LPQ_VERIFY', `${report.dir}: ${first.message}${more > 0 ? ` (and ${more} more)` : ''}`, {
    ...(first.got !== undefined && { got: first.got }),
    ...(first.expected !== undefined && { expected: first.expected }),
    hint: first.hint ?? 'The artifact does not hold the quantized weights: pack it again, and do not deploy it.',
  });
}
