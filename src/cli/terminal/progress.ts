import { createRequire } from 'node:module';
import type { MultiBar, SingleBar } from 'cli-progress';
import { duration } from './units.js';

/** How a running piece of work is shown. */
export interface ProgressView {
  update(done: number, detail?: string): void;
  /** A step that goes on: what it is at, and for how long already. Shown before it returns. */
  wait(what: string, seconds: number): void;
  /** A line of the log, without tearing the bar. */
  log(line: string): void;
  stop(): void;
}

/** Seconds left, from the mean rate so far; undefined before there is one. */
export class Eta {
  private readonly start: number;

  constructor(
    private readonly total: number,
    private readonly now: () => number = () => performance.now() / 1000,
  ) {
    this.start = now();
  }

  left(done: number): number | undefined {
    const elapsed = this.now() - this.start;
    if (done <= 0 || elapsed <= 0) return undefined;
    return (elapsed / done) * Math.max(0, this.total - done);
  }
}

/** Turns with every look at a step that goes on: two of the same name and length look different. */
const TURNS = '⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏';

/** A bar on a terminal. */
export class Bar implements ProgressView {
  private readonly bars: MultiBar;
  private readonly bar: SingleBar;
  private readonly eta: Eta;
  private turn = 0;

  constructor(stream: NodeJS.WriteStream, label: string, total: number) {
    this.eta = new Eta(total);
    // Loaded here: few runs have a terminal.
    const bars: typeof import('cli-progress') = createRequire(import.meta.url)('cli-progress');
    this.bars = new bars.MultiBar({
      stream,
      format: '{label} {bar} {percentage}%  {left}  {detail}',
      barCompleteChar: '█',
      barIncompleteChar: '░',
      barsize: 28,
      fps: 20,
      hideCursor: true,
      clearOnComplete: true,
      linewrap: false,
      gracefulExit: false,
    });
    this.bar = this.bars.create(total, 0, { label, left: '', detail: '' });
  }

  update(done: number, detail?: string): void {
    const left = this.eta.left(done);
    this.bar.update(done, {
      left: left === undefined ? '' : `${duration(left)} left`,
      ...(detail !== undefined && { detail }),
    });
  }

  wait(what: string, seconds: number): void {
    this.bar.update({ detail: `${waiting(what, seconds)} ${TURNS[this.turn++ % TURNS.length]}` });
    this.bars.update();
  }

  log(line: string): void {
    this.bars.log(`${line}\n`);
  }

  stop(): void {
    // Redraws once more, so that lines logged since the last frame are not lost with the bar.
    this.bars.update();
    this.bars.stop();
  }
}

/** A line on a terminal about work whose amount nobody knows; it goes when anything else is written. */
export class Line implements ProgressView {
  private shown = false;
  private turn = 0;

  constructor(
    private readonly stream: NodeJS.WriteStream,
    private readonly label: string,
  ) {}

  update(_done: number, detail = ''): void {
    this.wait(detail, 0);
  }

  wait(what: string, seconds: number): void {
    const turn = TURNS[this.turn++ % TURNS.length];
    const text = [`${turn} ${this.label}`, waiting(what, seconds)].filter((part) => part !== '').join('  ');
    this.shown = true;
    this.stream.write(`\r\x1b[2K${text.slice(0, Math.max(10, (this.stream.columns || 80) - 1))}`);
  }

  log(line: string): void {
    this.stop();
    this.stream.write(`${line}\n`);
  }

  stop(): void {
    if (this.shown) this.stream.write('\r\x1b[2K');
    this.shown = false;
  }
}

/** 'hashing lm_head.weight  14s'. */
function waiting(what: string, seconds: number): string {
  return [what, ...(seconds >= 1 ? [duration(seconds)] : [])].filter((part) => part !== '').join('  ');
}

/** A line at most every ten seconds, for logs and CI. `total` 0: nobody knows it. */
export class PlainProgress implements ProgressView {
  private readonly eta: Eta;
  private told: number;
  private done = 0;

  constructor(
    private readonly label: string,
    private readonly total: number,
    private readonly write: (line: string) => void,
    private readonly everySeconds = 10,
    private readonly now: () => number = () => performance.now() / 1000,
  ) {
    this.eta = new Eta(total, now);
    this.told = now();
  }

  update(done: number, detail?: string): void {
    this.done = done;
    if (this.now() - this.told < this.everySeconds) return;
    this.told = this.now();
    const left = this.total > 0 ? this.eta.left(done) : undefined;
    const percent = this.total > 0 ? ` ${Math.floor((100 * done) / this.total)}%` : '';
    this.write(
      `${this.label}${percent}${left === undefined ? '' : `, ${duration(left)} left`}${detail ? `  ${detail}` : ''}`,
    );
  }

  wait(what: string, seconds: number): void {
    this.update(this.done, waiting(what, seconds));
  }

  log(line: string): void {
    this.told = this.now();
    this.write(line);
  }

  stop(): void {}
}

/** With --json and --quiet: no progress, but what is logged all the same (warnings) goes through. */
export class SilentProgress implements ProgressView {
  constructor(private readonly write: (line: string) => void) {}

  update(): void {}

  wait(): void {}

  log(line: string): void {
    this.write(line);
  }

  stop(): void {}
}
