import fs from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { syncBuiltinESMExports } from 'node:module';
import { fileURLToPath } from 'node:url';
import { addon } from '../../../native/binding.js';
import { Confined } from '../../../src/calibrate/confined/host.js';
import { main } from '../../../src/cli/main.js';
import { HubClient } from '../../../src/hub/client.js';

/** Seconds that a piece of work takes which leaves JavaScript's thread alone, and one that does not. */
const BESIDE = 3;
const WITHIN = 0.6;
/** A tensor that is mapped, and a piece of a file that is read. */
const TENSOR = 0.1;
const PIECE = 0.02;
/** The reporter's own timer; others go on as they are. */
const LOOK_MS = 250;

/** What a command showed, and the longest time without anything new, in seconds. */
export interface Shown {
  readonly code: number;
  readonly text: string;
  readonly silence: number;
  /** What was on the screen before that. */
  readonly before: string;
}

type Work = (...args: never[]) => unknown;

/**
 * A clock that only work moves on: hashing, waiting for a device, a disk or a server takes three seconds, opening one 0.6. So a command on a tiny model takes as long as one on a large one, to whoever looks at the clock.
 */
export class SlowClock {
  private now = 1000;
  private readonly undo: (() => void)[] = [];
  private readonly timers = new Map<object, { readonly call: () => void; due: number }>();

  static async start(): Promise<SlowClock> {
    const clock = new SlowClock();
    clock.replaceTimers();
    const native = addon();
    clock.slowClass(native, 'Sha256', 0, ['update']);
    clock.slowClass(native, 'MappedFile', WITHIN, [], ['tensor']);
    clock.slowClass(native, 'Runtime', WITHIN, ['sync', 'download', 'time']);
    clock.slow(native, 'notFinite', BESIDE);
    clock.slow(Confined.prototype, 'ask', BESIDE);
    clock.slow(HubClient.prototype, 'send', BESIDE);
    clock.slow(fs, 'readSync', PIECE);
    syncBuiltinESMExports();
    clock.undo.push(syncBuiltinESMExports);
    const handle = await open(fileURLToPath(import.meta.url));
    clock.slow(Object.getPrototypeOf(handle) as FileHandle, 'sync', BESIDE);
    await handle.close();
    return clock;
  }

  stop(): void {
    for (const each of this.undo) each();
  }

  /** A command on a terminal. */
  async run(args: readonly string[]): Promise<Shown> {
    let [text, last, latest, silence, before] = ['', '', this.now, 0, ''];
    const look = (what: string) => {
      if (this.now - latest > silence) [silence, before] = [this.now - latest, last];
      [latest, last] = [this.now, what];
    };
    const stream = () =>
      ({
        isTTY: true,
        columns: 400,
        on() {},
        write: (chunk: string, done?: unknown) => {
          // biome-ignore lint/suspicious/noControlCharactersInRegex: escape sequences begin with one
          const visible = chunk.replace(/\x1b\[[0-9;?]*[A-Za-z]|[\r\n]/g, '');
          if (visible !== '') look(visible);
          text += `${visible}\n`;
          if (typeof done === 'function') done();
          return true;
        },
      }) as unknown as NodeJS.WriteStream;
    const code = await main(args, { stdout: stream(), stderr: stream() });
    look('');
    return { code, text, silence, before };
  }

  /** Time goes by, and timers are served. */
  private async beside(seconds: number): Promise<void> {
    const end = this.now + seconds;
    while (this.now < end) {
      this.now = Math.min(end, this.now + 0.1);
      for (const timer of this.timers.values())
        if (timer.due <= this.now) {
          timer.due = this.now + LOOK_MS / 1000;
          timer.call();
        }
    }
  }

  private slowed(work: Work, seconds: number): Work {
    const clock = this;
    return function (this: unknown, ...args: never[]) {
      if (seconds === BESIDE) return clock.beside(seconds).then(() => work.apply(this, args));
      clock.now += seconds;
      return work.apply(this, args);
    };
  }

  private slow<T extends object>(holder: T, name: keyof T, seconds: number): void {
    const work = holder[name];
    Object.defineProperty(holder, name, {
      value: this.slowed(work as Work, seconds),
      configurable: true,
      writable: true,
    });
    this.undo.push(() => Object.defineProperty(holder, name, { value: work, configurable: true, writable: true }));
  }

  /** Classes of the addon cannot be changed; what they make can. */
  private slowClass<T extends object>(
    holder: T,
    name: keyof T & ('Sha256' | 'MappedFile' | 'Runtime'),
    seconds: number,
    beside: readonly string[],
    within: readonly string[] = [],
  ): void {
    const made = holder[name] as unknown as new (...args: never[]) => Record<string, Work>;
    const construct = (target: typeof made, args: never[]) => {
      this.now += seconds;
      const one = new target(...args);
      for (const [methods, takes] of [
        [beside, BESIDE],
        [within, TENSOR],
      ] as const)
        for (const method of methods)
          Object.defineProperty(one, method, { value: this.slowed(one[method] as Work, takes).bind(one) });
      return one;
    };
    Object.defineProperty(holder, name, { value: new Proxy(made, { construct }), configurable: true, writable: true });
    this.undo.push(() => Object.defineProperty(holder, name, { value: made, configurable: true, writable: true }));
  }

  private replaceTimers(): void {
    const { setInterval: set, clearInterval: clear } = globalThis;
    const { now } = performance;
    performance.now = () => this.now * 1000;
    globalThis.setInterval = ((call: () => void, ms: number) => {
      if (ms !== LOOK_MS) return set(call, ms);
      const timer = { unref: () => timer };
      this.timers.set(timer, { call, due: this.now + ms / 1000 });
      return timer;
    }) as unknown as typeof setInterval;
    globalThis.clearInterval = ((timer: object | undefined) => {
      if (!timer || !this.timers.delete(timer)) clear(timer as NodeJS.Timeout | undefined);
    }) as typeof clearInterval;
    this.undo.push(() => {
      Object.assign(globalThis, { setInterval: set, clearInterval: clear });
      performance.now = now;
    });
  }
}
