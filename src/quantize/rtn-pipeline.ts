import type { NativeRuntime, Tensor } from '../../native/binding.js';
import type { LinearRef } from '../model/program.js';
import type { WeightSource } from '../model/source.js';
import { disposeWeights, loadWeights } from '../model/weights.js';
import type { BlockContext } from './blocks.js';
import { disposeModule, type QuantizedModule } from './result.js';
import type { QuantScheme } from './scheme.js';

/** Where weights come from, and who lets their pages go. */
export interface PipelineSource extends WeightSource {
  readonly weights: { advise(name: string, advice: 'willneed' | 'dontneed'): void };
}

/** Bytes of weights (16 bits each) of modules in flight, and modules at most. */
const WINDOW_BYTES = 2 ** 28;
const MOST_MODULES = 16;

interface Flight {
  readonly linear: LinearRef;
  readonly bytes: number;
  /** The result in the CPU's memory. */
  readonly result: Promise<QuantizedModule>;
}

/**
 * For methods that look at weights only: reading a module, rounding it and fetching its result overlap with those of the
 * modules before it, several being in flight. They reach `context.onModule` in the order they were added, one at a time.
 * Memory stays bounded by a window, whatever the model. After a failure abandon() must be called; the first module that
 * failed, in order, is the one that is thrown.
 */
export class WeightPipeline {
  private readonly flights: Flight[] = [];
  private bytes = 0;
  private readonly windowBytes: number;

  constructor(
    private readonly context: BlockContext,
    private readonly rt: NativeRuntime,
    private readonly source: PipelineSource,
  ) {
    this.windowBytes = Math.min(WINDOW_BYTES, (rt.memory()?.limit ?? Number.POSITIVE_INFINITY) / 4);
  }

  /** Starts the linears that have a scheme; waits while the window is full. */
  async add(linears: readonly LinearRef[]): Promise<void> {
    for (const linear of linears) {
      const scheme = this.context.schemes.get(linear.name);
      if (!scheme) continue;
      const bytes = 2 * linear.n * linear.k;
      while (this.flights.length > 0 && (this.bytes + bytes > this.windowBytes || this.flights.length >= MOST_MODULES))
        await this.land();
      this.bytes += bytes;
      const result = this.quantize(linear, scheme);
      result.catch(() => {}); // thrown where it is waited for
      this.flights.push({ linear, bytes, result });
    }
  }

  /** Waits for all modules that were added. */
  async drain(): Promise<void> {
    while (this.flights.length > 0) await this.land();
  }

  /** Waits for what is in flight and drops it. Throws nothing. */
  async abandon(): Promise<void> {
    for (const { result } of this.flights.splice(0)) await result.then(disposeModule, () => {});
  }

  private async land(): Promise<void> {
    const { linear, bytes, result } = this.flights[0] as Flight;
    const module = await result;
    this.flights.shift();
    this.bytes -= bytes;
    try {
      await this.context.onModule({ linear, result: module, relativeError: null, tokens: null });
    } finally {
      disposeModule(module);
    }
  }

  private async quantize(linear: LinearRef, scheme: QuantScheme): Promise<QuantizedModule> {
    const { rt } = this;
    const { quantizer } = this.context;
    const name = `${linear.name}.weight`;
    const weights = await loadWeights(rt, this.source, [name], new Set(linear.transposed ? [name] : []));
    const solver = quantizer.feed(rt, undefined);
    try {
      const solved = await solver.solve(linear.name, weights.get(name) as Tensor, scheme);
      try {
        return await fetchModule(rt, solved);
      } finally {
        disposeModule(solved);
      }
    } finally {
      solver.dispose();
      disposeWeights(weights);
      this.source.weights.advise(name, 'dontneed');
    }
  }
}

/** The result in the CPU's memory: its tensors are asked for together, so that one wait brings them all. */
async function fetchModule(rt: NativeRuntime, module: QuantizedModule): Promise<QuantizedModule> {
  const names = (['codes', 'scales', 'zeros', 'mask'] as const).filter((name) => module[name]);
  const wanted = names.map((name) => module[name] as Tensor);
  const got = await Promise.allSettled(wanted.map((tensor) => rt.download(tensor)));
  const failed = got.find((one) => one.status === 'rejected');
  if (failed) {
    for (const one of got) if (one.status === 'fulfilled') one.value.dispose();
    throw failed.reason;
  }
  const here = names.map((name, i) => [name, (got[i] as PromiseFulfilledResult<Tensor>).value] as const);
  return { ...module, ...Object.fromEntries(here) };
}
