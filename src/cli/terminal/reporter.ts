import path from 'node:path';
import { requireWholeFiles } from '../../../native/binding.js';
import { type Activity, activityText, listen } from '../../core/activity.js';
import type { LpqError } from '../../core/error.js';
import { oneLine, visibleJson } from '../../core/visible.js';
import { Outlet } from './outlet.js';
import { errorEvent, formatError } from './print-error.js';
import { Bar, Line, PlainProgress, type ProgressView, SilentProgress } from './progress.js';
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
/** A terminal shows something new within two seconds: whatever goes on is told after one of silence, looked for four times a second. */
const SILENCE_MS = 1000;
const LOOK_MS = 250;
/** What is new is shown at once, unless something else was just now. */
const NEW_MS = 100;

/**
 * Where a command tells what happens. Log lines and bars go to stderr, results to stdout; with --json each is an event
 * {"event": NAME, ...} on stdout instead, one a line.
 */
export class Reporter {
  private view: ProgressView | undefined;
  /** What the command is called, while it runs. */
  private command = '';
  private timer: NodeJS.Timeout | undefined;
  /** What is done, and since when. */
  private what = '';
  private since = performance.now();
  /** When something was last shown. */
  private shown = performance.now();
  /** A result is being written, piece by piece: a line of progress would tear it. */
  private speaking = false;
  /** An error that went to stdout, and may not have come through. */
  private unheard: LpqError | undefined;
  private readonly stdout: Outlet;
  private readonly stderr: Outlet;

  private readonly standIns: [string, string][] = [];

  constructor(
    private readonly output: Output,
    readonly options: ReportOptions,
  ) {
    this.stdout = Outlet.of(output.stdout, 'stdout');
    this.stderr = Outlet.of(output.stderr, 'stderr');
  }

  /** Whatever is told of `dir`, a directory that stands for what the user gave, names that instead, and the files in it as if they lay there. */
  standsFor(dir: string, given: string): void {
    this.standIns.push([`${dir}/${path.basename(given)}`, given], [dir, given]);
  }

  private told(text: string): string {
    return this.standIns.reduce((now, [dir, given]) => now.replaceAll(dir, given), text);
  }

  /** A command runs from here to end(): what it does is shown, whether it begins a task() or not. */
  begin(command: string): void {
    if (this.options.json || this.options.quiet) return;
    this.command = command;
    this.shown = performance.now();
    this.enter('');
    listen((now) => this.hear(now));
    this.timer = setInterval(() => this.look(), LOOK_MS);
    this.timer.unref();
  }

  /** Something that happened: an event, or a line of the log; `notes` stand below it. */
  event(name: string, data: object, line: string, notes: readonly string[] = []): void {
    this.speaking = false;
    if (this.options.json) this.write({ event: name, ...data });
    else if (!this.options.quiet) this.line([line, ...notes].map(oneLine).join('\n  '));
  }

  /** One of thousands of things that happen: an event, or a line of the log with --verbose. */
  detail(name: string, data: object, line: string, notes: readonly string[] = []): void {
    if (this.options.json || this.options.verbose) this.event(name, data, line, notes);
  }

  /** A part of the work that has ended: an event, or a line of the log where no bar shows it. */
  step(name: string, data: object, line: string): void {
    if (!(this.view instanceof Bar)) this.event(name, data, line);
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
    this.endTask();
    if (this.options.json) this.write({ event: 'result', ...data });
    else this.stdout.write(this.told(text));
  }

  /** A piece of what the command prints, as it comes; with --json the last event has it whole. */
  text(text: string): void {
    if (this.options.json) return;
    this.endTask();
    this.speaking = true;
    this.stdout.write(text);
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
    this.endTask();
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
    this.stderr.write(this.told(formatError(error, { color, verbose: this.options.verbose })));
  }

  /**
   * Begins a piece of work of `total` units: a bar on a terminal, now and then a line elsewhere. One at a time. With
   * --json it gives progress events, unless `events` is off: a command with one result prints one line of JSON.
   */
  task(label: string, total: number, events = true): Task {
    this.endTask();
    const view = this.viewOf(label, total);
    this.view = view;
    this.speaking = false;
    let told = performance.now();
    return {
      update: (done, detail) => {
        const what = detail === undefined ? undefined : oneLine(detail);
        this.enter(what ?? '');
        view.update(done, what);
        this.look();
        if (!this.options.json || !events || performance.now() - told < EVENT_MS) return;
        told = performance.now();
        this.write({ event: 'progress', task: label, done, total, ...(detail !== undefined && { detail }) });
      },
      end: () => this.endTask(),
    };
  }

  /** The command has ended: takes what it was at off the screen. */
  end(): void {
    clearInterval(this.timer);
    listen(undefined);
    this.endTask();
    this.command = '';
  }

  private endTask(): void {
    this.view?.stop();
    this.view = undefined;
  }

  /** The time of what is done again and again, under the same words, is that of all of it. */
  private enter(what: string): void {
    if (what !== this.what) this.since = performance.now();
    this.what = what;
  }

  private hear(activity: Activity): void {
    this.enter(oneLine(activityText(activity)));
    this.look(this.view instanceof Bar ? SILENCE_MS : NEW_MS);
  }

  /** Shows what is done, where nothing was shown for so long. Called by the timer, and by work that keeps the timer waiting. */
  private look(silence = SILENCE_MS): void {
    const now = performance.now();
    if (this.command === '' || this.speaking || now - this.shown < silence) return;
    this.shown = now;
    this.view ??= this.viewOf(this.command, 0);
    this.view.wait(this.what, (now - this.since) / 1000);
  }

  private viewOf(label: string, total: number): ProgressView {
    const { stderr } = this.output;
    const write = (line: string) => this.stderr.write(`${line}\n`);
    if (this.options.json || this.options.quiet) return new SilentProgress(write);
    if (!stderr.isTTY || process.env.TERM === 'dumb') return new PlainProgress(label, total, write);
    return total > 0 ? new Bar(stderr, label, total) : new Line(stderr, label);
  }

  private line(given: string): void {
    const text = this.told(given);
    // A bar writes to its stream by itself.
    if (this.view instanceof Bar) this.view.log(terminalText(text));
    else {
      if (this.view instanceof Line) this.view.stop();
      if (this.view instanceof PlainProgress) this.view.log(text);
      else this.stderr.write(`${text}\n`);
      this.shown = performance.now();
    }
  }

  private write(event: object): void {
    this.stdout.write(`${this.told(visibleJson(event))}\n`);
  }
}
