import { createHash } from 'node:crypto';
import { allocate, type DType, type Tensor, typed } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import { numbersOf } from '../foreign/numbers.js';
import { dtypeFacts, type SafetensorsDtype } from '../safetensors/dtypes.js';
import { fingerprintOf } from '../safetensors/fingerprint.js';
import type { TensorEntry } from '../safetensors/header.js';
import type { TensorReader } from '../safetensors/read.js';
import type { Adapter, Edit } from './adapter.js';
import { badAdapter } from './config.js';
import { NARROW } from './narrow.js';

type BaseReader = TensorReader & {
  fingerprint(): string;
  close(): void;
  readonly bits?: number;
  decodedNames?(): Iterable<string>;
};
const FLOATS = ['F32', 'F16', 'BF16'];

/**
 * A model with a LoRA in it: W + s B A (LoRA, arXiv 2106.09685), with DoRA its rows brought to their lengths. Sums are taken in fp64
 * in the order of the rank, and rounded once, to the base's dtype. Merged when a tensor is read; names, dtypes and shapes are the base's.
 */
export class LoraTensors implements TensorReader {
  constructor(
    private readonly base: BaseReader,
    private readonly adapter: Adapter,
  ) {
    for (const name of adapter.edits.keys())
      if (!FLOATS.includes(base.dtype(name)))
        badAdapter(adapter.dir, `'${name}' of the model is not a float tensor`, { got: base.dtype(name) });
  }

  get path(): string {
    return this.base.path;
  }

  names(): Iterable<string> {
    return this.base.names();
  }

  has(name: string): boolean {
    return this.base.has(name);
  }

  spec(name: string): TensorEntry {
    return this.base.spec(name);
  }

  dtype(name: string): SafetensorsDtype {
    return this.base.dtype(name);
  }

  shape(name: string): readonly number[] {
    return this.base.shape(name);
  }

  tensor(name: string, as?: DType): Tensor {
    const edit = this.adapter.edits.get(name);
    if (!edit) return this.base.tensor(name, as);
    const native = dtypeFacts(this.dtype(name)).native as DType;
    if (as !== undefined && as !== native)
      throw new LpqError('LPQ_DTYPE', `tensor '${name}' of ${this.path} cannot be read as ${as}`, { got: native });
    const values = edit.kind === 'replace' ? this.numbers(edit.from) : this.merged(name, edit);
    const bad = values.findIndex((value) => !Number.isFinite(value));
    if (bad >= 0) badAdapter(this.adapter.dir, `'${name}' has ${values[bad]} after it`, { got: `element ${bad}` });
    return stored(native, this.shape(name), values);
  }

  load(name: string): Promise<Tensor> | undefined {
    return this.adapter.edits.has(name) ? undefined : this.base.load?.(name);
  }

  /** Of a base that is published, or was quantized, in low bits: of its codes, and which tensors were decoded from them. */
  get bits(): number {
    return this.base.bits ?? 16;
  }

  decodedNames(): Iterable<string> {
    return this.base.decodedNames?.() ?? [];
  }

  advise(name: string, advice: 'willneed' | 'dontneed'): void {
    this.base.advise(name, advice);
  }

  /** Of the base and of the adapter: its settings and a sample of its tensors. */
  fingerprint(): string {
    const { config, file } = this.adapter;
    const own = fingerprintOf(JSON.stringify(config), [file]);
    return createHash('sha256').update(`${this.base.fingerprint()} ${own}`).digest('hex');
  }

  close(): void {
    this.base.close();
    this.adapter.close();
  }

  /** The weight as it is stored, in f32 but for its last rounding. */
  private merged(name: string, { a, b, factor, turned, magnitude }: Extract<Edit, { kind: 'delta' }>): Float32Array {
    const tensor = this.base.tensor(name);
    const weight = Float32Array.from(numbersOf(typed(tensor), tensor.dtype as 'f32' | 'f16' | 'bf16'));
    tensor.dispose();
    const [A, B] = [this.numbers(a), this.numbers(b)];
    const [rank = 1, k = 1] = this.adapter.file.shape(a);
    const n = B.length / rank;
    const lengths = magnitude === undefined ? undefined : this.numbers(magnitude);
    const [rowStep, columnStep] = turned ? [1, n] : [k, 1];
    const row = new Float64Array(k);
    for (let i = 0; i < n; i++) {
      row.fill(0);
      for (let j = 0; j < rank; j++) {
        const by = B[i * rank + j] as number;
        const from = j * k;
        for (let c = 0; c < k; c++) row[c] = (row[c] as number) + by * (A[from + c] as number);
      }
      let square = 0;
      for (let c = 0; c < k; c++) {
        const sum = (weight[i * rowStep + c * columnStep] as number) + factor * (row[c] as number);
        row[c] = sum;
        square += sum * sum;
      }
      const scale = lengths ? (lengths[i] as number) / Math.sqrt(square) : 1;
      for (let c = 0; c < k; c++) weight[i * rowStep + c * columnStep] = (row[c] as number) * scale;
    }
    return weight;
  }

  private numbers(name: string): Float32Array {
    const { file, dir } = this.adapter;
    const dtype = file.dtype(name);
    if (!FLOATS.includes(dtype)) badAdapter(dir, `'${name}' is not a float tensor`, { got: dtype });
    const tensor = file.tensor(name);
    const values = Float32Array.from(numbersOf(typed(tensor), tensor.dtype as 'f32' | 'f16' | 'bf16'));
    tensor.dispose();
    return values;
  }
}

function stored(dtype: DType, shape: readonly number[], values: Float32Array): Tensor {
  const out = allocate(dtype, shape);
  if (dtype === 'f32') typed<Float32Array>(out).set(values);
  else {
    const narrow = NARROW[dtype as 'bf16' | 'f16'];
    const words = typed<Uint16Array>(out);
    for (let i = 0; i < words.length; i++) words[i] = narrow(values[i] as number);
  }
  return out;
}
