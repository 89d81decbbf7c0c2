import { setImmediate } from 'node:timers/promises';

/** Bytes of results that may wait for the disk: enough to keep it busy, little beside a block's weights. */
const LIMIT_BYTES = 2 ** 28;
/** Writes under way at once: one tensor is hashed by one thread, slower than a disk writes. */
const AT_ONCE = 6;

/** What a write returns, or undefined: called once it and all that were added before it have ended, in the order they came. */
export type Tell = () => void;

interface Item {
  readonly bytes: number;
  readonly write: () => Promise<Tell | undefined>;
  readonly release: () => void;
  /** Undefined until the write has ended. */
  tell?: Tell;
}

/**
 * Writes that run behind the computation, several at once, begun in the order they came. A failure is thrown to whoever
 * comes next; what has not begun then is dropped.
 */
export class WriteBehind {
  private readonly waiting: Item[] = [];
  /** Begun, in order; an item leaves when it and all before it have ended. */
  private readonly begun: Item[] = [];
  private running = 0;
  /** Of what waits or runs. */
  private bytes = 0;
  private failure: { readonly cause: unknown } | undefined;
  private wakers: (() => void)[] = [];

  constructor(
    private readonly limitBytes = LIMIT_BYTES,
    private readonly atOnce = AT_ONCE,
  ) {}

  /**
   * Queues a write of `bytes` bytes; waits while too many are queued already. One above the limit goes alone. `release` is
   * called once in any case: after the write, or instead of it.
   */
  async add(bytes: number, write: () => Promise<Tell | undefined>, release: () => void): Promise<void> {
    while (!this.idle && this.bytes + bytes > this.limitBytes) await this.change();
    if (this.failure) {
      release();
      throw this.failure.cause;
    }
    this.bytes += bytes;
    this.waiting.push({ bytes, write, release });
    this.begin();
  }

  /** Waits for everything queued. Throws the first failure. */
  async settle(): Promise<void> {
    while (!this.idle) await this.change();
    if (this.failure) throw this.failure.cause;
  }

  /** Drops what has not begun and waits for what has, so that its tensors and files may go. Throws nothing. */
  async abandon(): Promise<void> {
    this.failure ??= { cause: undefined };
    this.drop();
    while (!this.idle) await this.change();
  }

  private get idle(): boolean {
    return this.running === 0 && this.waiting.length === 0;
  }

  private begin(): void {
    while (this.running < this.atOnce) {
      const item = this.waiting.shift();
      if (!item) return;
      this.running++;
      this.begun.push(item);
      void this.run(item);
    }
  }

  private async run(item: Item): Promise<void> {
    try {
      // The caller shall have enqueued what comes next before.
      await setImmediate();
      if (!this.failure) item.tell = (await item.write()) ?? (() => {});
      this.tell();
    } catch (cause) {
      this.failure ??= { cause };
    }
    item.release();
    this.bytes -= item.bytes;
    this.running--;
    if (this.failure) this.drop();
    else this.begin();
    this.wake();
  }

  /** Nobody is told of anything behind a write that failed. */
  private tell(): void {
    while (!this.failure && this.begun[0]?.tell) this.begun.shift()?.tell?.();
  }

  private drop(): void {
    for (const { bytes, release } of this.waiting.splice(0)) {
      this.bytes -= bytes;
      release();
    }
  }

  private change(): Promise<void> {
    return new Promise((resolve) => this.wakers.push(resolve));
  }

  private wake(): void {
    for (const wake of this.wakers.splice(0)) wake();
  }
}
