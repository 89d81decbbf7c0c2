import path from 'node:path';
import type { ArtifactManifest } from '../../formats/artifact/schema.js';
import { GgufFile } from '../../formats/gguf/read.js';
import { readConfig } from '../../formats/safetensors/checkpoint.js';
import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { LpqError } from '../core/error.js';
import type { WeightSource } from '../model/source.js';
import { decodeValues } from '../verify/decode-gguf.js';
import { GGUF_FILE } from '../verify/gguf-context.js';
import { checkpointName } from '../verify/gguf-tables.js';

/** A GGUF artifact as a weight source under the checkpoint's names: blocks are decoded to f32 with the verifier's tables. */
export class GgufSource implements WeightSource {
  readonly config: Record<string, unknown>;
  private readonly file: GgufFile;
  private readonly tensors: ReadonlyMap<string, string>;

  /** Throws LPQ_ARTIFACT, LPQ_CONFIG, LPQ_FILE. */
  constructor(
    readonly dir: string,
    readonly manifest: ArtifactManifest,
    private readonly runtime: NativeRuntime,
  ) {
    this.config = readConfig(dir);
    this.file = GgufFile.open(path.join(dir, GGUF_FILE));
    this.tensors = new Map(
      this.file.names().flatMap((tensor) => {
        const name = checkpointName(tensor, this.config);
        return name === undefined ? [] : [[name, tensor] as const];
      }),
    );
  }

  names(): Iterable<string> {
    return this.tensors.keys();
  }

  has(name: string): boolean {
    return this.tensors.has(name);
  }

  shape(name: string): readonly number[] {
    const { rows, columns, rank } = this.file.matrix(this.tensorOf(name));
    // The one vector that checkpoints hold as a matrix of one row.
    return rank > 1 || name.endsWith('shared_expert_gate.weight') ? [rows, columns] : [columns];
  }

  async tensor(name: string): Promise<Tensor> {
    const { tensor } = await decodeValues(this.runtime, this.file, this.tensorOf(name), this.config);
    const shaped = tensor.view(this.shape(name));
    tensor.dispose();
    return shaped;
  }

  close(): void {
    this.file.close();
  }

  private tensorOf(name: string): string {
    const tensor = this.tensors.get(name);
    if (tensor !== undefined) return tensor;
    throw new LpqError('LPQ_TENSOR_MISSING', `${this.dir}/${GGUF_FILE} has no tensor for '${name}'`);
  }
}
