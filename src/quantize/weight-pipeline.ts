import type { NativeRuntime, Tensor } from '../../native/binding.js';
import type { LinearRef } from '../model/program.js';
import type { WeightSource } from '../model/source.js';
import { disposeWeights, loadWeights } from '../model/weights.js';
import type { BlockContext } from './blocks.js';
import { allOrNone, disposeModule, downloadModule, type QuantizedModule } from './result.js';
import type { QuantScheme } from './scheme.js';
import { siblingRuns, solveSiblings } from './siblings.js';

/** Where weights come from, and who lets their pages go. */
export interface PipelineSource extends WeightSource {
  readonly weights: { advise(name: string, advice: 'willneed' | 'dontneed'): void };
}

/** Bytes of weights (16 bits each) of modules in flight, and modules at most. */
const WINDOW_BYTES = 2 ** 28;
const MOST_MODULES = 16;

interface Flight {
  readonly linears: readonly LinearRef[];
  readonly bytes: number;
  /** The results in the CPU's memory. */
  readonly results: Promise<QuantizedModule[]>;
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

  /** Starts the linears of a feed that have a scheme; waits while the window is full. */
  async add(linears: readonly LinearRef[]): Promise<void> {
    for (const run of siblingRuns(linears, ({ name }) => this.context.schemes.get(name))) {
      const bytes = run.reduce((sum, { n, k }) => sum + 2 * n * k, 0);
      while (this.flights.length > 0 && (this.bytes + bytes > this.windowBytes || this.flights.length >= MOST_MODULES))
        await this.land();
      this.bytes += bytes;
      const results = this.quantize(run);
      results.catch(() => {}); // thrown where it is waited for
      this.flights.push({ linears: run, bytes, results });
    }
  }

  /** Waits for all modules that were added. */
  async drain(): Promise<void> {
    while (this.flights.length > 0) await this.land();
  }

  /** Waits for what is in flight and drops it. Throws nothing. */
  async abandon(): Promise<void> {
    for (const { results } of this.flights.splice(0))
      await results.then(
        (modules) => modules.forEach(disposeModule),
        () => {},
      );
  }

  private async land(): Promise<void> {
    const { linears, bytes, results } = this.flights[0] as Flight;
    const modules = await results;
    this.flights.shift();
    this.bytes -= bytes;
    try {
      for (const [i, linear] of linears.entries()) {
        const result = modules[i] as QuantizedModule;
        await this.context.onModule({ linear, result, relativeError: null, tokens: null });
      }
    } finally {
      modules.forEach(disposeModule);
    }
  }

  private async quantize(linears: readonly LinearRef[]): Promise<QuantizedModule[]> {
    const { rt } = this;
    const { quantizer, schemes } = this.context;
    const names = linears.map(({ name }) => `${name}.weight`);
    const transposed = names.filter((_, i) => linears[i]?.transposed);
    const weights = await loadWeights(rt, this.source, names, new Set(transposed));
    const solver = quantizer.feed(rt, undefined);
    try {
      const siblings = linears.map(({ name }) => ({ name, weight: weights.get(`${name}.weight`) as Tensor }));
      const scheme = schemes.get((linears[0] as LinearRef).name) as QuantScheme;
      const solved = await solveSiblings(rt, solver, siblings, scheme);
      try {
        // Asked for together, so that one wait brings them all.
        return await allOrNone(
          solved.map((module) => downloadModule(rt, module)),
          disposeModule,
        );
      } finally {
        solved.forEach(disposeModule);
      }
    } finally {
      solver.dispose();
      disposeWeights(weights);
      for (const name of names) this.source.weights.advise(name, 'dontneed');
    }
  }
}
