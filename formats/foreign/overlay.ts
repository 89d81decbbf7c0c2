import type { DType, Tensor } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import type { SafetensorsDtype } from '../safetensors/dtypes.js';
import type { TensorEntry } from '../safetensors/header.js';
import type { TensorReader } from '../safetensors/read.js';

/** A file whose tensors are partly replaced: `consumed` ones are hidden, `made` ones stand beside those that stay. */
export abstract class Overlay<
  File extends TensorReader & { close(): void },
  Made extends { readonly entry: TensorEntry },
> implements TensorReader
{
  protected readonly made = new Map<string, Made>();
  protected readonly consumed = new Set<string>();

  constructor(protected readonly file: File) {}

  get path(): string {
    return this.file.path;
  }

  /** Names of the file's tensors that stay. */
  *carried(): Iterable<string> {
    for (const name of this.file.names()) if (!this.consumed.has(name)) yield name;
  }

  *names(): Iterable<string> {
    yield* this.carried();
    yield* this.made.keys();
  }

  has(name: string): boolean {
    return this.made.has(name) || (this.file.has(name) && !this.consumed.has(name));
  }

  /** Throws LPQ_TENSOR_MISSING. */
  spec(name: string): TensorEntry {
    const found = this.made.get(name);
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

  abstract tensor(name: string, as?: DType): Tensor;

  load(name: string): Promise<Tensor> | undefined {
    return this.has(name) && !this.made.has(name) ? this.file.load?.(name) : undefined;
  }

  abstract advise(name: string, advice: 'willneed' | 'dontneed'): void;

  close(): void {
    this.file.close();
  }
}
