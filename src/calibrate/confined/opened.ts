import type { LpqError } from '../../core/error.js';
import { aborted, type Budget, Confined, type Excess } from './host.js';
import type { Request } from './protocol.js';

/** What was opened and nobody can ask about any more is closed, sooner or later. */
const forgotten = new FinalizationRegistry<{ readonly home: Confined; readonly at: number }>(({ home, at }) => {
  const any: Budget = { seconds: 60, memory: home.memory };
  if (home.alive) home.ask({ kind: 'close', at }, any, () => aborted()).catch(() => {});
});

/**
 * Something that was opened in a confined process, and is opened again in a new one where that was ended. `T` is what opening tells.
 */
export class Opened<T extends { readonly at: number }> {
  private constructor(
    private readonly request: Request,
    private readonly budget: Budget,
    private readonly exceeded: (excess: Excess) => LpqError,
    private home: Confined,
    private told: Promise<T>,
  ) {
    this.note();
  }

  /** Throws what the request throws, and `exceeded`. */
  static async open<T extends { readonly at: number }>(
    request: Request,
    budget: Budget,
    exceeded: (excess: Excess) => LpqError,
  ): Promise<Opened<T>> {
    const home = Confined.for(budget.memory);
    const told = home.ask<T>(request, budget, exceeded);
    await told;
    return new Opened(request, budget, exceeded, home, told);
  }

  /** Asks about it; `request` is made of what opening told. */
  async ask<R>(
    request: (told: T) => Request,
    seconds: number,
    exceeded: (excess: Excess, told: T) => LpqError,
  ): Promise<R> {
    if (!this.home.alive) {
      this.home = Confined.for(this.budget.memory);
      this.told = this.home.ask<T>(this.request, this.budget, this.exceeded);
      this.note();
    }
    const { home } = this;
    const told = await this.told;
    const { memory } = this.budget;
    return home.ask<R>(request(told), { seconds, memory }, (excess) => exceeded(excess, told));
  }

  private note(): void {
    const { home } = this;
    // A failure to open again is told to whoever asks.
    this.told.then(({ at }) => forgotten.register(this, { home, at })).catch(() => {});
  }
}
