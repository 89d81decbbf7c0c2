import type { DType, Tensor } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import type { SafetensorsDtype } from './dtypes.js';
import type { TensorEntry } from './header.js';
import type { SafetensorsFile, TensorReader } from './read.js';

/** The tensors of several open shards as one reader; who makes it says which shard owns a name. */
export class ShardReader implements TensorReader {
  protected readonly owner = new Map<string, SafetensorsFile>();

  protected constructor(
    readonly path: string,
    readonly files: readonly SafetensorsFile[],
  ) {}

  names(): Iterable<string> {
    return this.owner.keys();
  }

  has(name: string): boolean {
    return this.owner.has(name);
  }

  /** The shard that holds a tensor. */
  fileOf(name: string): SafetensorsFile {
    const file = this.owner.get(name);
    if (file) return file;
    throw new LpqError('LPQ_TENSOR_MISSING', `${this.path} has no tensor '${name}'`);
  }

  spec(name: string): TensorEntry {
    return this.fileOf(name).spec(name);
  }

  dtype(name: string): SafetensorsDtype {
    return this.spec(name).dtype;
  }

  shape(name: string): readonly number[] {
    return this.spec(name).shape;
  }

  tensor(name: string, as?: DType): Tensor {
    return this.fileOf(name).tensor(name, as);
  }

  advise(name: string, advice: 'willneed' | 'dontneed'): void {
    this.fileOf(name).advise(name, advice);
  }

  close(): void {
    for (const file of this.files) file.close();
  }
}
