import { type DType, fromTyped, type Tensor } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import { moduleTensors, type Part } from '../canonical/tensors.js';
import type { Checkpoint } from '../safetensors/checkpoint.js';
import { dtypeFacts, type SafetensorsDtype } from '../safetensors/dtypes.js';
import type { TensorEntry } from '../safetensors/header.js';
import type { TensorReader } from '../safetensors/read.js';
import type { ForeignModule } from './module.js';

interface VirtualTensor {
  readonly entry: TensorEntry;
  readonly module: ForeignModule;
  readonly part: Part;
}

/**
 * A foreign checkpoint as if its tensors were canonical ones: MODULE.codes, MODULE.scales, ... are decoded when they are
 * asked for, carried tensors are the file's own. Nothing is written.
 */
export class CanonicalView implements TensorReader {
  private readonly virtual = new Map<string, VirtualTensor>();
  private readonly consumed = new Set<string>();

  constructor(
    private readonly file: Checkpoint,
    modules: readonly ForeignModule[],
  ) {
    for (const module of modules) {
      for (const name of module.tensors) this.consumed.add(name);
      for (const [part, spec] of moduleTensors(module.name, module.declaration)) {
        const bytes = (spec.shape.reduce((a, b) => a * b, 1) * dtypeFacts(spec.dtype).bits) / 8;
        this.virtual.set(spec.name, { entry: { ...spec, begin: 0, end: bytes }, module, part });
      }
    }
  }

  get path(): string {
    return this.file.path;
  }

  /** Names of the tensors that are no module's. */
  *carried(): Iterable<string> {
    for (const name of this.file.names()) if (!this.consumed.has(name)) yield name;
  }

  *names(): Iterable<string> {
    yield* this.carried();
    yield* this.virtual.keys();
  }

  has(name: string): boolean {
    return this.virtual.has(name) || (this.file.has(name) && !this.consumed.has(name));
  }

  spec(name: string): TensorEntry {
    const found = this.virtual.get(name);
    if (found) return found.entry;
    if (this.has(name)) return this.file.spec(name);
    throw new LpqError('LPQ_TENSOR_MISSING', `${this.path} has no tensor '${name}'`);
  }

  dtype(name: string): SafetensorsDtype {
    return this.spec(name).dtype;
  }

  shape(name: string): readonly number[] {
    return this.spec(name).shape;
  }

  tensor(name: string, as?: DType): Tensor {
    const found = this.virtual.get(name);
    if (!found) {
      this.spec(name);
      return this.file.tensor(name, as);
    }
    const { entry, module, part } = found;
    return fromTyped(as ?? (dtypeFacts(entry.dtype).native as DType), entry.shape, module.decode(part));
  }

  advise(name: string, advice: 'willneed' | 'dontneed'): void {
    const found = this.virtual.get(name);
    if (!found) this.file.advise(name, advice);
    else if (found.part === 'codes') for (const tensor of found.module.tensors) this.file.advise(tensor, advice);
  }

  close(): void {
    this.file.close();
  }
}
