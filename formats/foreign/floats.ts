import { allocate, type DType, type Tensor, typed } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import { readFp8Config } from '../fp8-block/config.js';
import { fp8ToFloat } from '../fp8-block/decode.js';
import { fp8Modules } from '../fp8-block/modules.js';
import { mxfp4ToBf16 } from '../mxfp4-source/decode.js';
import { expertBytes, fusedExperts } from '../mxfp4-source/modules.js';
import { dtypeFacts, type SafetensorsDtype } from '../safetensors/dtypes.js';
import type { TensorEntry } from '../safetensors/header.js';
import type { TensorReader } from '../safetensors/read.js';
import type { ForeignContext } from './module.js';
import { numbersOf } from './numbers.js';
import { Overlay } from './overlay.js';
import { scaleGrid } from './scales.js';

/** What the view stands on: a checkpoint, or what of it can be read. */
export type FileTensors = TensorReader & { fingerprint(): string; close(): void };

interface Decoded {
  readonly entry: TensorEntry;
  decode(): Tensor;
}

/**
 * A model published in low bits as if it were published in floats: tensors have the architecture's names and shapes.
 * FP8 weights are F32 (a code times its scale, one rounding), MXFP4 experts BF16, which holds every value.
 */
export class FloatView extends Overlay<FileTensors, Decoded> {
  /** Throws LPQ_FOREIGN for codes and scales that do not fit each other, LPQ_CONFIG. */
  constructor(file: FileTensors, method: string, ctx: ForeignContext) {
    super(file);
    if (method === 'fp8') this.addFp8(ctx);
    else this.addMxfp4(ctx);
    for (const name of this.made.keys())
      if (file.has(name) && !this.consumed.has(name))
        throw new LpqError('LPQ_FOREIGN', `${ctx.dir} holds '${name}' both in low bits and as it is`);
  }

  /** Names of the tensors that were decoded. */
  decodedNames(): Iterable<string> {
    return this.made.keys();
  }

  tensor(name: string, as?: DType): Tensor {
    const found = this.made.get(name);
    if (found && (as === undefined || as === dtypeFacts(found.entry.dtype).native)) return found.decode();
    if (!found && this.has(name)) return this.file.tensor(name, as);
    this.spec(name);
    throw new LpqError('LPQ_DTYPE', `tensor '${name}' of ${this.path} cannot be read as ${as}`);
  }

  advise(name: string, advice: 'willneed' | 'dontneed'): void {
    if (!this.made.has(name)) this.file.advise(name, advice);
  }

  fingerprint(): string {
    return this.file.fingerprint();
  }

  private add(
    name: string,
    dtype: SafetensorsDtype,
    shape: readonly number[],
    from: readonly string[],
    decode: () => Tensor,
  ) {
    const bytes = (shape.reduce((a, b) => a * b, 1) * dtypeFacts(dtype).bits) / 8;
    for (const each of from) this.consumed.add(each);
    this.made.set(name, { entry: { name, dtype, shape, begin: 0, end: bytes }, decode });
  }

  private addFp8(ctx: ForeignContext): void {
    const { block } = readFp8Config(ctx.where, ctx.settings);
    const { modules, problems } = fp8Modules(ctx);
    if (problems[0]) throw problems[0];
    for (const { declaration, tensors } of modules) {
      const [n, k] = declaration.shape;
      const [weight, scale] = tensors as [string, string];
      this.add(weight, 'F32', [n, k], tensors, () => {
        const scales = floats(this.file, scale);
        const grid = scaleGrid(n, k, block ?? (scales.length === 1 ? [n, k] : [1, k]));
        const out = allocate('f32', [n, k]);
        fp8ToFloat(typed<Uint8Array>(this.file.tensor(weight, 'u8')), scales, grid, n, k, typed<Float32Array>(out));
        return out;
      });
    }
  }

  private addMxfp4(ctx: ForeignContext): void {
    for (const { name, experts, n, k } of fusedExperts(ctx)) {
      const [blocks, scales] = [`${name}_blocks`, `${name}_scales`];
      this.add(name, 'BF16', [experts, k, n], [blocks, scales], () => {
        const out = allocate('bf16', [experts, k, n]);
        for (let expert = 0; expert < experts; expert++) {
          const own = out.view([k, n], expert * k * n);
          const codes = expertBytes(ctx, blocks, expert, (n * k) / 2);
          mxfp4ToBf16(codes, expertBytes(ctx, scales, expert, (n * k) / 32), n, k, typed<Uint16Array>(own));
          own.dispose();
        }
        return out;
      });
    }
  }
}

/** Scales of any dtype that FP8 files have. */
function floats(file: TensorReader, name: string): Float32Array {
  const tensor = file.tensor(name);
  return numbersOf(typed<Uint8Array>(tensor), tensor.dtype as 'f32' | 'f16' | 'bf16' | 'f8_e8m0');
}
