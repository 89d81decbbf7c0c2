import { createHash } from 'node:crypto';
import { closeSync, openSync, readSync } from 'node:fs';
import { allocate, type DType, fromTyped, type Tensor, typed } from '../../../native/binding.js';
import { LpqError } from '../../../src/core/error.js';
import { numbersOf } from '../../foreign/numbers.js';
import { dtypeFacts, type SafetensorsDtype } from '../../safetensors/dtypes.js';
import type { TensorEntry } from '../../safetensors/header.js';
import type { TensorReader } from '../../safetensors/read.js';
import { halvesOrder, rowOrder } from '../names.js';
import { moveChunks, stateOrder } from '../states.js';
import { badGguf, GgufModelFile } from './file.js';
import { joinLatent, type LatentHalves } from './latent.js';
import { type GgufSourceModel, ggufSourceModel } from './model.js';
import { type Place, placesOf } from './places.js';
import { scalarsIn } from './scalars.js';

/**
 * The tensors of a model in GGUF under the names and shapes of its checkpoint: plain numbers as they lie there, blocks decoded to
 * F32 when they are asked for, what llama.cpp's converter changed changed back.
 */
export class GgufTensors implements TensorReader {
  private print: string | undefined;

  private constructor(
    /** For messages. */
    readonly path: string,
    readonly file: GgufModelFile,
    readonly model: GgufSourceModel,
    private readonly places: ReadonlyMap<string, Place>,
    private readonly scalars: ReadonlyMap<string, { readonly entry: TensorEntry; readonly value: number }>,
  ) {}

  /** `files`: those of splitOf. Throws LPQ_FILE, LPQ_GGUF, LPQ_ARCH_UNKNOWN. */
  static open(files: readonly string[]): GgufTensors {
    const file = GgufModelFile.open(files);
    try {
      const model = ggufSourceModel(file);
      return new GgufTensors(file.path, file, model, placesOf(file, model), scalarsIn(model));
    } catch (error) {
      file.close();
      throw error;
    }
  }

  names(): Iterable<string> {
    return [...this.places.keys(), ...this.scalars.keys()];
  }

  has(name: string): boolean {
    return this.places.has(name) || this.scalars.has(name);
  }

  spec(name: string): TensorEntry {
    return this.scalars.get(name)?.entry ?? this.find(name).entry;
  }

  dtype(name: string): SafetensorsDtype {
    return this.spec(name).dtype;
  }

  shape(name: string): readonly number[] {
    return this.spec(name).shape;
  }

  tensor(name: string, as?: DType): Tensor {
    const scalar = this.scalars.get(name);
    if (scalar) return fromTyped('f32', scalar.entry.shape, Float32Array.of(scalar.value));
    const place = this.find(name);
    const { entry, halves } = place;
    const own = dtypeFacts(entry.dtype).native as DType;
    if (as !== undefined && as !== own)
      throw new LpqError('LPQ_DTYPE', `tensor '${name}' of ${this.path} cannot be read as ${as}`, { got: entry.dtype });
    if (place.rows) return this.stacked(place.entry, place.rows);
    return halves ? this.joined(place, halves) : this.made(place);
  }

  /** The rows of one behind those of the other. */
  private stacked({ dtype, shape }: TensorEntry, rows: readonly Place[]): Tensor {
    const out = allocate(dtypeFacts(dtype).native as DType, shape);
    for (const [i, place] of rows.entries()) {
      const part = this.made(place);
      out.bytes().set(part.bytes(), i * part.byteLength);
      part.dispose();
    }
    return out;
  }

  /** Both halves decoded, as F32 unless they hold the same floats. */
  private joined({ entry }: Place, { k, v }: LatentHalves): Tensor {
    const native = dtypeFacts(entry.dtype).native as DType;
    const [first, second] = [k, v].map((from) => {
      const { position, bytes, type, shape } = from;
      const dtype = typeof type.holds === 'string' ? type.holds : 'F32';
      const own = { entry: { ...entry, name: from.name, dtype, shape }, fix: undefined, minusOne: false };
      return widened(this.made({ ...own, from, position, bytes }), native);
    }) as [Tensor, Tensor];
    const out = allocate(native, entry.shape);
    const [parts, values] = [k.shape as [number, number, number], v.shape[1] as number];
    joinLatent(typed<Float32Array>(first), typed<Float32Array>(second), parts, values, typed<Float32Array>(out));
    for (const half of [first, second]) half.dispose();
    return out;
  }

  private made({ entry, from, position, bytes, fix, minusOne, minusExp, states }: Place): Tensor {
    const own = dtypeFacts(entry.dtype).native as DType;
    const { holds } = from.type;
    const { map } = from.part;
    const order = states === 'rows' || states === 'behind' ? this.stateRows(states, entry) : this.orderOf(fix, entry);
    const columns = states === 'columns' ? this.stateRows('rows', entry, entry.shape[1]) : undefined;
    if (typeof holds === 'string' && !order && !columns && !minusOne && !minusExp && fix !== 'turned')
      return map.tensor(own, entry.shape, position);
    const view = map.tensor('u8', [bytes], position);
    const stored = order ? takeRows(typed<Uint8Array>(view), order) : typed<Uint8Array>(view);
    const out = allocate(own, entry.shape);
    if (typeof holds === 'string') out.bytes().set(stored);
    else holds(stored, bytes / from.type.bytes, typed<Float32Array>(out));
    view.dispose();
    if (columns) {
      const [rows = 1, width = 1] = entry.shape;
      const chunks = columns
        .filter((_, i) => i % (width / this.stateHeads()) === 0)
        .map((at) => at / (width / this.stateHeads()));
      out.bytes().set(moveChunks(out.bytes(), rows, chunks));
    }
    if (fix === 'turned') turn(out);
    if (minusOne || minusExp) {
      const values = typed<Float32Array>(out);
      const change = minusOne ? (value: number) => value - 1 : (value: number) => Math.log(-value);
      for (let i = 0; i < values.length; i++) values[i] = change(values[i] as number);
    }
    return out;
  }

  advise(name: string, advice: 'willneed' | 'dontneed'): void {
    if (this.scalars.has(name)) return;
    const { from, position, bytes, halves, rows } = this.find(name);
    from.part.map.advise(advice, position, bytes);
    const second = rows?.[1];
    if (second) second.from.part.map.advise(advice, second.position, second.bytes);
    halves?.v.part.map.advise(advice, halves.v.position, halves.v.bytes);
  }

  /** Tells it from other models: sha256 over the headers, and pieces of every tensor. */
  fingerprint(): string {
    this.print ??= fingerprint(this.file);
    return this.print;
  }

  close(): void {
    this.file.close();
  }

  private find(name: string): Place {
    const found = this.places.get(name);
    if (found) return found;
    throw new LpqError('LPQ_TENSOR_MISSING', `${this.path} has no tensor for '${name}'`);
  }

  private stateHeads(): number {
    return this.model.facts.number('ssm.time_step_rank');
  }

  /** The same of heads of values of a gated delta rule; undefined where each has keys of its own. */
  private stateRows(
    states: 'rows' | 'behind',
    { shape }: TensorEntry,
    count = shape[0] as number,
  ): Int32Array | undefined {
    const { facts } = this.model;
    const [heads, keyHeads] = [this.stateHeads(), facts.number('ssm.group_count')];
    if (heads === keyHeads) return undefined;
    const before = states === 'behind' ? 2 * keyHeads * facts.number('ssm.state_size') : 0;
    const back = new Int32Array(count);
    for (const [stored, row] of stateOrder(count, heads, keyHeads, before).entries()) back[row] = stored;
    return back;
  }

  /** Row r of the checkpoint is row order[r] of the file; undefined where they are the same. */
  private orderOf(fix: Place['fix'], { name, shape }: TensorEntry): Int32Array | undefined {
    const halved = fix === 'halved-q' || fix === 'halved-k';
    if (fix !== 'heads' && fix !== 'interleaved-q' && fix !== 'interleaved-k' && !halved) return undefined;
    const { heads, headDim } = this.model.shared;
    const own = fix === 'interleaved-k' || fix === 'halved-k' ? this.model.kvHeads : heads;
    const rows = shape[0] as number;
    const expected = own * headDim * (fix === 'heads' ? 3 : 1);
    if (rows !== expected)
      badGguf(this.path, `the tensor for '${name}' does not have the rows that its heads require`, {
        got: rows,
        expected,
      });
    if (fix === 'heads')
      return Int32Array.from({ length: rows }, (_, row) => {
        const part = Math.floor(row / headDim) % 3;
        const head = Math.floor(row / (3 * headDim));
        return (part * heads + head) * headDim + (row % headDim);
      });
    const back = new Int32Array(rows);
    const rotary = this.model.facts.optional('rope.dimension_count') ?? headDim;
    const order = halved ? halvesOrder(rows, own, rotary) : rowOrder(rows, own);
    for (const [stored, row] of order.entries()) back[row] = stored;
    return back;
  }
}

/** As F32 where that is asked for; the same tensor where it is of that type. */
function widened(tensor: Tensor, to: DType): Tensor {
  if (tensor.dtype === to) return tensor;
  const wide = fromTyped(to, tensor.shape, numbersOf(typed<Uint16Array>(tensor), tensor.dtype as 'f16' | 'bf16'));
  tensor.dispose();
  return wide;
}

function takeRows(stored: Uint8Array, order: Int32Array): Uint8Array {
  const width = stored.length / order.length;
  const moved = new Uint8Array(stored.length);
  for (const [row, at] of order.entries()) moved.set(stored.subarray(at * width, (at + 1) * width), row * width);
  return moved;
}

/** Elements of [N, K] become those of [K, N], in place of a tensor that has that shape already. */
function turn(tensor: Tensor): void {
  const [k, n] = tensor.shape as [number, number];
  const values = typed<Float32Array | Uint16Array>(tensor);
  const stored = values.slice();
  for (let row = 0; row < n; row++)
    for (let column = 0; column < k; column++) values[column * n + row] = stored[row * k + column] as number;
}

const PIECE = 4096;

function fingerprint({ parts }: GgufModelFile): string {
  const hash = createHash('sha256');
  const buffer = Buffer.alloc(PIECE);
  for (const { path, map, dataStart, tensors } of parts) {
    hash.update(map.read(0, dataStart));
    // Read by offsets rather than through the mapping, which would read ahead around every piece.
    const fd = openSync(path, 'r');
    try {
      for (const { bytes, position } of tensors)
        for (const at of bytes <= PIECE ? [0] : [0, Math.floor((bytes - PIECE) / 2), bytes - PIECE]) {
          const length = Math.min(PIECE, bytes);
          if (readSync(fd, buffer, 0, length, position + at) !== length)
            throw new LpqError('LPQ_FILE', `${path} became shorter while lpq read it`);
          hash.update(buffer.subarray(0, length));
        }
    } finally {
      closeSync(fd);
    }
  }
  return hash.digest('hex');
}
