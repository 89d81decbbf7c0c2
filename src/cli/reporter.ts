import type { LpqError } from '../core/error.js';
import { errorEvent, formatError } from './print-error.js';
import { Bar, PlainProgress, type ProgressView, SilentProgress } from './progress.js';
import { colorOn, paint } from './terminal.js';

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

  constructor(
    private readonly output: Output,
    readonly options: ReportOptions,
  ) {}

  /** Something that happened: an event, or a line of the log. */
  event(name: string, data: object, line: string): void {
    if (this.options.json) this.write({ event: name, ...data });
    else if (!this.options.quiet) this.line(line);
  }

  /** Something that the user should know although the run goes on; shown even when quiet. */
  warn(message: string, data: object = {}): void {
    if (this.options.json) this.write({ event: 'warning', message, ...data });
    else this.line(`${paint('warning', 'yellow', colorOn(this.output.stderr))}  ${message}`);
  }

  /** What the command was for: text on stdout, or the last event. */
  result(data: object, text: string): void {
    if (this.options.json) this.write({ event: 'result', ...data });
    else this.output.stdout.write(text);
  }

  /** A piece of what the command prints, as it comes; with --json the last event has it whole. */
  text(text: string): void {
    if (!this.options.json) this.output.stdout.write(text);
  }

  error(error: LpqError): void {
    this.end();
    const { json, verbose } = this.options;
    if (json) this.write({ event: 'error', ...errorEvent(error, verbose) });
    else this.output.stderr.write(formatError(error, { color: colorOn(this.output.stderr), verbose }));
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
        view.update(done, detail);
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
    const write = (line: string) => stderr.write(`${line}\n`);
    if (this.options.json || this.options.quiet) return new SilentProgress(write);
    if (stderr.isTTY && process.env.TERM !== 'dumb') return new Bar(stderr, label, total);
    return new PlainProgress(label, total, write);
  }

  private line(text: string): void {
    if (this.view) this.view.log(text);
    else this.output.stderr.write(`${text}\n`);
  }

  private write(event: object): void {
    this.output.stdout.write(`${JSON.stringify(event)}\n`);
  }
}
