import { withBeside } from '../../../native/beside.js';
import type { NativeRuntime } from '../../../native/binding.js';
import { Confined } from '../../calibrate/confined/host.js';
import { aborted } from './failure.js';

/** After the first signal, a run that has not stopped by itself is ended by force. */
const PATIENCE_MS = 5000;
const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;

/**
 * Ctrl-C. The first signal stops the native queue and what runs confined, and raises `signal`; the command then fails with LPQ_ABORTED and
 * cleans up as it does on any error. A second one (or a command that does not stop) ends the process at once, after the
 * registered clean-ups, which are synchronous. Exit code 130 either way. SIGTERM and SIGHUP are the same; SIGPIPE stays ignored,
 * as Node.js has it: what could not be written is noted where it is written (outlet.ts).
 */
export class Interrupt {
  private readonly controller = new AbortController();
  private readonly runtimes = new Set<NativeRuntime>();
  private readonly cleanups = new Set<() => void>();
  private timer: NodeJS.Timeout | undefined;
  private readonly onSignal = () => this.raise();

  constructor(
    private readonly say: (line: string) => void,
    private readonly exit: (code: number) => void = (code) => process.exit(code),
  ) {}

  get signal(): AbortSignal {
    return this.controller.signal;
  }

  install(): void {
    for (const name of SIGNALS) process.on(name, this.onSignal);
  }

  uninstall(): void {
    for (const name of SIGNALS) process.off(name, this.onSignal);
    clearTimeout(this.timer);
  }

  /** `runtime` is stopped by the first signal. */
  watch<T extends NativeRuntime>(runtime: T): T {
    this.runtimes.add(runtime);
    return runtime;
  }

  /** What to do before the process ends by force: remove temporary directories. */
  cleanup(action: () => void): void {
    this.cleanups.add(action);
  }

  /** Throws LPQ_ABORTED once a signal has come: for the places between two native operations. */
  check(): void {
    if (this.signal.aborted) throw aborted();
  }

  /** Drops what the watched runtimes, and confined processes, still have to do. */
  stopWork(): void {
    for (const runtime of withBeside(this.runtimes)) runtime.abort();
    Confined.stopAll();
  }

  /** What a signal does. */
  raise(): void {
    if (this.signal.aborted) {
      this.leave();
      return;
    }
    this.say('stopping; press Ctrl-C again to leave at once');
    this.controller.abort();
    this.stopWork();
    this.timer = setTimeout(() => this.leave(), PATIENCE_MS);
    this.timer.unref();
  }

  /** Ends the process, after the clean-ups. */
  leave(code = 130): void {
    for (const action of this.cleanups) {
      try {
        action();
      } catch (error) {
        this.say(`could not clean up: ${(error as Error).message}`);
      }
    }
    this.exit(code);
  }
}
