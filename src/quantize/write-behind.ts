import { setImmediate } from 'node:timers/promises';

/** Bytes of results that may wait for the disk: enough to keep it busy, little beside a block's weights. */
const LIMIT_BYTES = 2 ** 28;

/**
 * Writes that run behind the computation, one after another in the order they came. A failure is thrown to whoever comes
 * next; what was queued behind it is dropped.
 */
export class WriteBehind {
  private readonly queue: { readonly bytes: number; readonly done: Promise<void> }[] = [];
  private waiting = 0;
  private failure: { readonly cause: unknown } | undefined;

  constructor(private readonly limitBytes = LIMIT_BYTES) {}

  /**
   * Queues a write of `bytes` bytes; waits while too many are queued already. One above the limit goes alone. `release` is
   * called once in any case: after the write, or instead of it.
   */
  async add(bytes: number, write: () => Promise<void>, release: () => void): Promise<void> {
    while (this.queue.length > 0 && this.waiting + bytes > this.limitBytes) await this.queue[0]?.done;
    if (this.failure) {
      release();
      throw this.failure.cause;
    }
    this.waiting += bytes;
    const before = this.queue.at(-1)?.done ?? Promise.resolve();
    const done = before.then(async () => {
      try {
        // Writing hashes on this thread: the caller shall have enqueued what comes next before.
        await setImmediate();
        if (!this.failure) await write();
      } catch (cause) {
        this.failure ??= { cause };
      }
      release();
      this.queue.shift();
      this.waiting -= bytes;
    });
    this.queue.push({ bytes, done });
  }

  /** Waits for everything queued. Throws the first failure. */
  async settle(): Promise<void> {
    await this.idle();
    if (this.failure) throw this.failure.cause;
  }

  /** Drops what has not begun and waits for what has, so that its tensors and files may go. Throws nothing. */
  async abandon(): Promise<void> {
    this.failure ??= { cause: undefined };
    await this.idle();
  }

  private async idle(): Promise<void> {
    while (this.queue.length > 0) await this.queue.at(-1)?.done;
  }
}
