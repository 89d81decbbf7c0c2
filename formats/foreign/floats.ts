import { allocate, type DType, type Tensor, typed } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import { compressedModules } from '../compressed-tensors/modules.js';
import { int4ToFloat } from '../compressed-tensors/published.js';
import { readFp8Config } from '../fp8-block/config.js';
import { fp8ToFloat } from '../fp8-block/decode.js';
import { fusedFp8 } from '../fp8-block/fused.js';
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
 * FP8 and INT4 weights are F32 (a code times its scale, one rounding), MXFP4 experts BF16, which holds every value.
 */
export class FloatView extends Overlay<FileTensors, Decoded> {
  /** Of a code. */
  readonly bits: number;

  /** Throws LPQ_FOREIGN for codes and scales that do not fit each other, LPQ_CONFIG. */
  constructor(file: FileTensors, method: string, ctx: ForeignContext) {
    super(file);
    const form = FORMS[method];
    if (!form) throw new LpqError('LPQ_INTERNAL', `no model is published in ${method}`);
    this.bits = form.bits;
    form.read(ctx, (made) => this.add(made));
    for (const name of this.made.keys())
      if (file.has(name) && !this.consumed.has(name))
        throw new LpqError('LPQ_FOREIGN', `${ctx.dir} holds '${name}' twice, in low bits and plain`);
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

  private add({ name, dtype, shape, from, decode }: DecodedTensor): void {
    const bytes = (shape.reduce((a, b) => a * b, 1) * dtypeFacts(dtype).bits) / 8;
    for (const each of from) this.consumed.add(each);
    this.made.set(name, { entry: { name, dtype, shape, begin: 0, end: bytes }, decode });
  }
}

/** A tensor of floats, and the tensors of the file that it is decoded from. */
interface DecodedTensor {
  readonly name: string;
  readonly dtype: SafetensorsDtype;
  readonly shape: readonly number[];
  readonly from: readonly string[];
  decode(): Tensor;
}

type Add = (made: DecodedTensor) => void;

/** Forms in which models are published that have no wider weights, by quant_method: bits of a code, and their tensors. */
const FORMS: Readonly<Record<string, { readonly bits: number; read(ctx: ForeignContext, add: Add): void }>> = {
  fp8: { bits: 8, read: addFp8 },
  mxfp4: { bits: 4, read: addMxfp4 },
  'compressed-tensors': { bits: 4, read: addInt4 },
};

function addFp8(ctx: ForeignContext, add: Add): void {
  const { block } = readFp8Config(ctx.where, ctx.settings);
  const { modules, problems } = fp8Modules(ctx);
  if (problems[0]) throw problems[0];
  for (const { declaration, tensors } of modules) {
    const [n, k] = declaration.shape;
    const [weight, scale] = tensors as [string, string];
    add({
      ...{ name: weight, dtype: 'F32', shape: [n, k], from: tensors },
      decode() {
        const scales = floats(ctx.weights, scale);
        const grid = scaleGrid(n, k, block ?? (scales.length === 1 ? [n, k] : [1, k]));
        const out = allocate('f32', [n, k]);
        fp8ToFloat(typed<Uint8Array>(ctx.weights.tensor(weight, 'u8')), scales, grid, out);
        return out;
      },
    });
  }
  for (const { name, scales, experts, grid, rows, columns } of fusedFp8(ctx, block))
    add({
      ...{ name, dtype: 'F32', shape: [experts, rows, columns], from: [name, scales] },
      decode() {
        const all = floats(ctx.weights, scales);
        const perExpert = all.length / experts;
        return eachExpert('f32', [experts, rows, columns], (own, expert) => {
          const codes = expertBytes(ctx, name, expert, rows * columns);
          const its = all.subarray(expert * perExpert, (expert + 1) * perExpert);
          fp8ToFloat(codes, its, grid, own);
        });
      },
    });
}

function addMxfp4(ctx: ForeignContext, add: Add): void {
  for (const { name, experts, n, k } of fusedExperts(ctx)) {
    const [blocks, scales] = [`${name}_blocks`, `${name}_scales`];
    add({
      ...{ name, dtype: 'BF16', shape: [experts, k, n], from: [blocks, scales] },
      decode: () =>
        eachExpert('bf16', [experts, k, n], (own, expert) => {
          const codes = expertBytes(ctx, blocks, expert, (n * k) / 2);
          mxfp4ToBf16(codes, expertBytes(ctx, scales, expert, (n * k) / 32), n, k, own);
        }),
    });
  }
}

function addInt4(ctx: ForeignContext, add: Add): void {
  const { modules, problems } = compressedModules(ctx);
  if (problems[0]) throw problems[0];
  for (const { name, declaration, tensors } of modules) {
    const [words, scale] = tensors as [string, string];
    add({
      ...{ name: `${name}.weight`, dtype: 'F32', shape: declaration.shape, from: tensors },
      decode() {
        const out = allocate('f32', declaration.shape);
        const codes = typed<Int32Array>(ctx.weights.tensor(words));
        int4ToFloat(codes, floats(ctx.weights, scale), out);
        return out;
      },
    });
  }
}

/** All experts' matrices, made one by one: together they may be more than a typed array holds. */
function eachExpert(
  dtype: DType,
  [experts, rows, columns]: readonly [number, number, number],
  fill: (own: Tensor, expert: number) => void,
): Tensor {
  const out = allocate(dtype, [experts, rows, columns]);
  for (let expert = 0; expert < experts; expert++) {
    const own = out.view([rows, columns], expert * rows * columns);
    fill(own, expert);
    own.dispose();
  }
  return out;
}

/** Scales of any dtype that such files have. */
function floats(file: TensorReader, name: string): Float32Array {
  const tensor = file.tensor(name);
  return numbersOf(typed<Uint8Array>(tensor), tensor.dtype as 'f32' | 'f16' | 'bf16' | 'f8_e8m0');
}
