import { createHash } from 'node:crypto';
import path from 'node:path';
import type { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import { type CanonicalModule, canonicalSchema } from '../../formats/canonical/schema.js';
import type { ModuleDeclaration } from '../../formats/canonical/tensors.js';
import { readRegular } from '../../formats/directory/read-file.js';
import type { NativeRuntime } from '../../native/binding.js';
import { LpqError } from '../core/error.js';
import { bitsPerWeight } from './grid.js';
import type { Quantizer } from './quantizer.js';
import { openEarlier, schemeOfModule } from './redo.js';
import { storedModule } from './replay.js';
import type { QuantizedModule } from './result.js';
import { printScheme, type QuantScheme } from './scheme.js';
import type { SourceView } from './source-view.js';

/** The modules of an earlier checkpoint that training begins with, in the place of those that the method before it would make. */
export class BegunModules {
  private constructor(
    private readonly checkpoint: CanonicalCheckpoint,
    private readonly sha256: string,
  ) {}

  /** `planned`: what the run will make. Throws LPQ_REDO where the checkpoint has others, and what opening it throws. */
  static open(from: string, source: SourceView, planned: ReadonlyMap<string, ModuleDeclaration>): BegunModules {
    const checkpoint = openEarlier(from, source);
    try {
      const { modules } = canonicalSchema.parse(checkpoint.manifest);
      for (const name of new Set([...planned.keys(), ...Object.keys(modules)]))
        requireSame(name, from, Object.hasOwn(modules, name) ? modules[name] : undefined, planned.get(name));
      const sha256 = createHash('sha256')
        .update(readRegular(path.join(from, 'lpq.json')))
        .digest('hex');
      return new BegunModules(checkpoint, sha256);
    } catch (error) {
      checkpoint.close();
      throw error;
    }
  }

  /** A quantizer that trains, from these modules. */
  quantizer(base: Quantizer): Quantizer {
    return {
      ...base,
      options: { ...base.options, from: this.sha256 },
      feed: (rt) => ({
        solve: (name, weight, scheme) => this.module(rt, name, weight.shape as [number, number], scheme),
        dispose: () => {},
      }),
    };
  }

  close(): void {
    this.checkpoint.close();
  }

  private async module(
    rt: NativeRuntime,
    name: string,
    shape: readonly [number, number],
    scheme: QuantScheme,
  ): Promise<QuantizedModule> {
    await this.checkpoint.requireHashes(name);
    const { quality } = this.checkpoint.module(name);
    return {
      ...storedModule(rt, name, shape, scheme, this.checkpoint),
      quality: {
        method: quality?.method ?? 'unknown',
        bitsPerWeight: bitsPerWeight(scheme, ...shape),
        relativeError: null,
        damp: quality?.damp ?? null,
        seconds: 0,
      },
    };
  }
}

/** Throws LPQ_REDO where a module is in one of both alone, in another form, or has zeros that training would fill. */
function requireSame(
  name: string,
  from: string,
  module: CanonicalModule | undefined,
  planned: ModuleDeclaration | undefined,
): void {
  const hint = 'Give the options (--bits, --group-size, --lm-head, ...) that it was made with.';
  if (!module || !planned)
    throw new LpqError('LPQ_REDO', `${name} is ${module ? 'quantized in' : 'no quantized module of'} ${from}`, {
      got: module ? 'a run that leaves it as it is' : 'a run that quantizes it',
      hint,
    });
  const of = ({ type, shape, granularity, scales, zeros, sparsity }: ModuleDeclaration) =>
    JSON.stringify([type, shape, granularity, scales.dtype, scales.block, scales.twoLevel ?? false, zeros, sparsity]);
  const print = (declared: ModuleDeclaration) => printScheme(schemeOfModule(declared as CanonicalModule));
  if (of(module) !== of(planned))
    throw new LpqError('LPQ_REDO', `${name} has another form in ${from}`, {
      got: print(planned),
      expected: print(module),
      hint,
    });
  if (module.sparsity !== 'none')
    throw new LpqError('LPQ_REDO', `${name} of ${from} is 2:4, which is not trained`, {
      hint: 'Leave --from out.',
    });
}
