import { MultiBar, type SingleBar } from 'cli-progress';
import { duration } from './units.js';

/** How a running piece of work is shown. */
export interface ProgressView {
  update(done: number, detail?: string): void;
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

/** A bar on a terminal. */
export class Bar implements ProgressView {
  private readonly bars: MultiBar;
  private readonly bar: SingleBar;
  private readonly eta: Eta;

  constructor(stream: NodeJS.WriteStream, label: string, total: number) {
    this.eta = new Eta(total);
    this.bars = new MultiBar({
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

  log(line: string): void {
    this.bars.log(`${line}\n`);
  }

  stop(): void {
    // Redraws once more, so that lines logged since the last frame are not lost with the bar.
    this.bars.update();
    this.bars.stop();
  }
}

/** A line at most every ten seconds, for logs and CI. */
export class PlainProgress implements ProgressView {
  private readonly eta: Eta;
  private told: number;

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
    if (this.now() - this.told < this.everySeconds) return;
    this.told = this.now();
    const left = this.eta.left(done);
    const percent = Math.floor((100 * done) / this.total);
    this.write(
      `${this.label} ${percent}%${left === undefined ? '' : `, ${duration(left)} left`}${detail ? `  ${detail}` : ''}`,
    );
  }

  log(line: string): void {
    this.write(line);
  }

  stop(): void {}
}

/** With --json and --quiet: no progress, but what is logged all the same (warnings) goes through. */
export class SilentProgress implements ProgressView {
  constructor(private readonly write: (line: string) => void) {}

  update(): void {}

  log(line: string): void {
    this.write(line);
  }

  stop(): void {}
}
