import { requireWholeFiles } from '../../native/binding.js';
import type { LpqError } from '../core/error.js';
import { oneLine, visibleJson } from '../core/visible.js';
import { Outlet } from './outlet.js';
import { errorEvent, formatError } from './print-error.js';
import { Bar, PlainProgress, type ProgressView, SilentProgress } from './progress.js';
import { colorOn, paint, terminalText } from './terminal.js';

export interface Output {
  readonly stdout: NodeJS.WriteStream;
  readonly stderr: NodeJS.WriteStream;
}

export interface ReportOptions {
  /** stdout carries NDJSON and nothing else. */
  readonly json: boolean;
  /** No progress and no log lines; results, warnings and errors only. */
  readonly quiet: boolean;
  readonly verbose: boolean;
}

/** A running piece of work whose amount is known. */
export interface Task {
  /** `detail` is what is being worked on now. */
  update(done: number, detail?: string): void;
  end(): void;
}

/** At most one progress event a second: a log of a day-long run stays readable. */
const EVENT_MS = 1000;

/**
 * Where a command tells what happens. Log lines and bars go to stderr, results to stdout; with --json each is an event
 * {"event": NAME, ...} on stdout instead, one a line.
 */
export class Reporter {
  private view: ProgressView | undefined;
  /** An error that went to stdout, and may not have come through. */
  private unheard: LpqError | undefined;
  private readonly stdout: Outlet;
  private readonly stderr: Outlet;

  constructor(
    private readonly output: Output,
    readonly options: ReportOptions,
  ) {
    this.stdout = Outlet.of(output.stdout, 'stdout');
    this.stderr = Outlet.of(output.stderr, 'stderr');
  }

  /** Something that happened: an event, or a line of the log; `notes` stand below it. */
  event(name: string, data: object, line: string, notes: readonly string[] = []): void {
    if (this.options.json) this.write({ event: name, ...data });
    else if (!this.options.quiet) this.line([line, ...notes].map(oneLine).join('\n  '));
  }

  /** Something that the user should know although the run goes on; shown even when quiet. */
  warn(message: string, data: object = {}): void {
    if (this.options.json) this.write({ event: 'warning', message, ...data });
    else this.line(`${paint('warning', 'yellow', colorOn(this.output.stderr))}  ${oneLine(message)}`);
  }

  /**
   * What the command was for: text on stdout, or the last event. Names from files stand in it by oneLine(). Throws LPQ_FILE where a
   * file lost bytes while it was read.
   */
  result(data: object, text: string): void {
    requireWholeFiles();
    if (this.options.json) this.write({ event: 'result', ...data });
    else this.stdout.write(text);
  }

  /** A piece of what the command prints, as it comes; with --json the last event has it whole. */
  text(text: string): void {
    if (!this.options.json) this.stdout.write(text);
  }

  /** Help, which is the same with --json. */
  help(text: string, stream: 'stdout' | 'stderr'): void {
    this[stream].write(text);
  }

  /** Whether nobody reads what the command prints any more. */
  get unread(): boolean {
    return this.stdout.failed;
  }

  /** An event; without --json, or where stdout takes nothing more, on stderr. */
  error(error: LpqError): void {
    this.end();
    if (this.options.json && !this.stdout.failed) {
      this.unheard = error;
      this.write({ event: 'error', ...errorEvent(error, this.options.verbose) });
    } else this.printError(error);
  }

  /** Settles when all is written; with the error where something could not be. An error that stdout lost goes to stderr. */
  async delivered(): Promise<LpqError | undefined> {
    const lost = await this.stdout.settle();
    if (lost && this.unheard) this.printError(this.unheard);
    this.unheard = undefined;
    return lost ?? (await this.stderr.settle());
  }

  private printError(error: LpqError): void {
    const color = colorOn(this.output.stderr);
    this.stderr.write(formatError(error, { color, verbose: this.options.verbose }));
  }

  /**
   * Begins a piece of work of `total` units: a bar on a terminal, now and then a line elsewhere. One at a time. With
   * --json it gives progress events, unless `events` is off: a command with one result prints one line of JSON.
   */
  task(label: string, total: number, events = true): Task {
    this.end();
    const view = this.viewOf(label, total);
    this.view = view;
    let told = performance.now();
    return {
      update: (done, detail) => {
        view.update(done, detail === undefined ? undefined : oneLine(detail));
        if (!this.options.json || !events || performance.now() - told < EVENT_MS) return;
        told = performance.now();
        this.write({ event: 'progress', task: label, done, total, ...(detail !== undefined && { detail }) });
      },
      end: () => this.end(),
    };
  }

  /** Takes a bar off the screen. */
  end(): void {
    this.view?.stop();
    this.view = undefined;
  }

  private viewOf(label: string, total: number): ProgressView {
    const { stderr } = this.output;
    const write = (line: string) => this.stderr.write(`${line}\n`);
    if (this.options.json || this.options.quiet) return new SilentProgress(write);
    if (stderr.isTTY && process.env.TERM !== 'dumb') return new Bar(stderr, label, total);
    return new PlainProgress(label, total, write);
  }

  private line(text: string): void {
    // A bar writes to its stream by itself.
    if (this.view instanceof Bar) this.view.log(terminalText(text));
    else this.stderr.write(`${text}\n`);
  }

  private write(event: object): void {
    this.stdout.write(`${visibleJson(event)}\n`);
  }
}
