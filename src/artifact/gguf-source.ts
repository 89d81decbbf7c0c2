import path from 'node:path';
import type { ArtifactManifest } from '../../formats/artifact/schema.js';
import { GgufFile } from '../../formats/gguf/read.js';
import { type Scalar, scalarsOf } from '../../formats/gguf/scalars.js';
import { checkpointShape } from '../../formats/gguf/source/places.js';
import { readConfig } from '../../formats/safetensors/checkpoint.js';
import { fromTyped, type NativeRuntime, type Tensor, typed } from '../../native/binding.js';
import { LpqError } from '../core/error.js';
import { type GgufModel, ggufModel, namesOf } from '../model/gguf/model.js';
import type { WeightSource } from '../model/source.js';
import { decodeValues } from '../verify/decode-gguf.js';
import { GGUF_FILE } from '../verify/gguf-context.js';
import { checkpointNames, fixOf, isMinusExp, isPadded, isPlusOne, wholeOf } from '../verify/gguf-tables.js';

/** A GGUF artifact as a weight source under the checkpoint's names: blocks are decoded to f32 with the verifier's tables. */
export class GgufSource implements WeightSource {
  readonly config: Record<string, unknown>;
  private readonly file: GgufFile;
  private readonly model: GgufModel;
  /** By the checkpoint's name: the tensor of the file, and the row of it where it is a row. */
  private readonly tensors = new Map<string, { readonly tensor: string; readonly row?: number }>();

  /** Numbers that the file has among its keys. */
  private readonly scalars = new Map<string, Scalar & { readonly value: number }>();

  /** Throws LPQ_ARTIFACT, LPQ_CONFIG, LPQ_FILE, LPQ_TARGET. */
  constructor(
    readonly dir: string,
    readonly manifest: ArtifactManifest,
    private readonly runtime: NativeRuntime,
  ) {
    this.config = readConfig(dir);
    this.model = ggufModel(
      dir,
      this.config,
      namesOf(Object.keys(manifest.modules), 'output.weight' in manifest.carried),
    );
    this.file = GgufFile.open(path.join(dir, GGUF_FILE));
    for (const tensor of this.file.names()) {
      const names = checkpointNames(this.model, tensor, this.file.matrix(tensor).rows);
      for (const [row, name] of names.entries())
        this.tensors.set(name, { tensor: wholeOf(this.model, tensor), ...(names.length > 1 && { row }) });
    }
    for (const [key, list] of scalarsOf(this.model.names, this.model.plan.blocks.length)) {
      const stored = this.file.metadata.get(key);
      for (const [i, value] of stored?.type === 'f32s' ? stored.value.entries() : []) {
        const scalar = list[i];
        if (scalar) this.scalars.set(scalar.name, { ...scalar, value });
      }
    }
  }

  names(): Iterable<string> {
    return [...this.tensors.keys(), ...this.scalars.keys()];
  }

  has(name: string): boolean {
    return this.tensors.has(name) || this.scalars.has(name);
  }

  shape(name: string): readonly number[] {
    const scalar = this.scalars.get(name);
    if (scalar) return scalar.shape;
    const { tensor, row } = this.find(name);
    const { rows, columns, rank } = this.file.matrix(tensor);
    if (row !== undefined) return [columns];
    // Those behind are zeros.
    if (isPadded(this.model, tensor)) return [this.model.plan.perLayer?.vocab ?? rows, columns];
    const fix = fixOf(this.model, tensor);
    // Conv1D stays turned over: quantized().
    return checkpointShape(fix === 'turned' ? undefined : fix, rank > 1 ? [rows, columns] : [columns]);
  }

  /** Conv1D lies turned over, as modules do. */
  quantized(name: string): boolean {
    return !this.scalars.has(name) && fixOf(this.model, this.find(name).tensor) === 'turned';
  }

  async tensor(name: string): Promise<Tensor> {
    const scalar = this.scalars.get(name);
    if (scalar) return fromTyped('f32', scalar.shape, Float32Array.of(scalar.value));
    const { tensor, row } = this.find(name);
    const { tensor: whole } = await decodeValues(this.runtime, this.file, tensor, this.model);
    const shape = this.shape(name);
    const shaped = row === undefined ? whole.view(shape) : whole.view(shape, row * (shape[0] as number));
    whole.dispose();
    const [plusOne, minusExp] = [isPlusOne(this.model, tensor), isMinusExp(this.model, tensor)];
    if (!plusOne && !minusExp) return shaped;
    const back = plusOne ? (value: number) => value - 1 : (value: number) => Math.log(-value);
    const less = fromTyped('f32', shape, typed<Float32Array>(shaped).map(back));
    shaped.dispose();
    return less;
  }

  close(): void {
    this.file.close();
  }

  private find(name: string): { readonly tensor: string; readonly row?: number } {
    const found = this.tensors.get(name);
    if (found !== undefined) return found;
    throw new LpqError('LPQ_TENSOR_MISSING', `${this.dir}/${GGUF_FILE} has no tensor for '${name}'`);
  }
}
