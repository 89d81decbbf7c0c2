import { type ChildProcess, fork } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { LpqError } from '../../core/error.js';
import type { Reply, Request } from './protocol.js';

/** What a request may use. */
export interface Budget {
  /** Of processor time, so that a machine that is busy or was suspended does not count; without /proc, of time. */
  readonly seconds: number;
  /** MiB of JavaScript's heap, for everything that the process holds. */
  readonly memory: number;
}

/** How a request went beyond its budget. */
export type Excess = { readonly got: string; readonly of: 'time' | 'memory' };

interface Pending {
  readonly budget: Budget;
  readonly exceeded: (excess: Excess) => LpqError;
  readonly resolve: (value: unknown) => void;
  readonly reject: (error: Error) => void;
}

const ENTRY = fileURLToPath(new URL('./guest.js', import.meta.url));
/** How often the processor time of a request is looked at. */
const LOOK_MS = 200;
/** The kernel counts processor time in these, on every architecture that Node.js runs on. */
const TICKS_PER_SECOND = 100;

/**
 * A process for what model files bring along that may run for ever or take all memory: a thread could be ended too, but V8 ends the
 * whole process where an array or a string outgrows its heap at once. It answers one request after the other. An idle one does not
 * keep lpq alive.
 */
export class Confined {
  private static readonly open = new Set<Confined>();
  private readonly child: ChildProcess;
  /** The first is under way, since `since` seconds of the child's time. */
  private readonly queue: Pending[] = [];
  private since = 0;
  private timer: NodeJS.Timeout | undefined;
  private ended = false;

  private constructor(readonly memory: number) {
    this.child = fork(ENTRY, [String(process.pid)], {
      // What it prints, such as V8's last words, is not for users.
      stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
      serialization: 'advanced',
      execArgv: [`--max-old-space-size=${memory}`],
    });
    this.child.on('message', (reply: Reply) => this.take(reply));
    this.child.on('error', (cause) =>
      this.end(() => new LpqError('LPQ_MEMORY', 'lpq could not start a process for the tokenizer', { cause })),
    );
    this.child.on('exit', (code, signal) => this.left(code, signal));
    this.idle();
    Confined.open.add(this);
  }

  /** The running one with this much memory, else a new one. */
  static for(memory: number): Confined {
    return [...Confined.open].find((each) => each.memory === memory) ?? new Confined(memory);
  }

  /** Ends all of them; what they were asked fails with LPQ_ABORTED. What is asked afterwards starts a new one. */
  static stopAll(): void {
    for (const each of Confined.open) each.end(aborted);
  }

  get alive(): boolean {
    return !this.ended;
  }

  /**
   * The answer to a request, whose time counts from when those before it are answered. Throws what the guest throws, what
   * `exceeded` makes of an excess, LPQ_ABORTED.
   */
  ask<T>(request: Request, budget: Budget, exceeded: (excess: Excess) => LpqError): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      if (this.ended) return reject(aborted());
      this.queue.push({ budget, exceeded, resolve: resolve as (value: unknown) => void, reject });
      if (this.queue.length === 1) this.busy();
      // A child that cannot be sent to is about to be reported as gone.
      this.child.send(request, () => {});
    });
  }

  private take(reply: Reply): void {
    const pending = this.queue.shift();
    if (!pending) return;
    if (this.queue.length === 0) this.idle();
    else this.since = this.seconds();
    if ('value' in reply) pending.resolve(reply.value);
    else {
      const { code, message, got, expected, hint } = reply.refusal;
      pending.reject(new LpqError(code, message, { got, expected, ...(hint !== undefined && { hint }) }));
    }
  }

  private busy(): void {
    this.child.ref();
    this.child.channel?.ref();
    this.since = this.seconds();
    this.timer = setInterval(() => this.look(), LOOK_MS);
  }

  private idle(): void {
    clearInterval(this.timer);
    this.child.unref();
    this.child.channel?.unref();
  }

  private look(): void {
    const [pending] = this.queue;
    const used = this.seconds() - this.since;
    if (!pending || used <= pending.budget.seconds) return;
    this.end(({ exceeded }) => exceeded({ of: 'time', got: `still running after ${used.toFixed(1)} s of computing` }));
  }

  /** Processor time of the child so far. */
  private seconds(): number {
    try {
      const stat = readFileSync(`/proc/${this.child.pid}/stat`, 'latin1');
      // The second field is a name in brackets, which may hold anything; user and system time are the 14th and 15th.
      const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
      return (Number(fields[11]) + Number(fields[12])) / TICKS_PER_SECOND;
    } catch {
      return performance.now() / 1000;
    }
  }

  private left(code: number | null, signal: NodeJS.Signals | null): void {
    // Ctrl-C goes to all processes of a terminal, and may end this one first.
    const stopped = signal === 'SIGINT' || signal === 'SIGTERM' || signal === 'SIGHUP';
    const got = `more than ${this.memory} MiB (its process ended with ${signal ?? `code ${code}`})`;
    this.end(stopped ? aborted : ({ exceeded }) => exceeded({ of: 'memory', got }));
  }

  private end(why: (pending: Pending) => LpqError): void {
    if (this.ended) return;
    this.ended = true;
    Confined.open.delete(this);
    this.idle();
    this.child.kill('SIGKILL');
    for (const pending of this.queue.splice(0)) pending.reject(why(pending));
  }
}

export function aborted(): LpqError {
  return new LpqError('LPQ_ABORTED', 'the run was interrupted');
}
