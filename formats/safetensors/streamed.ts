import { readdirSync } from 'node:fs';
import path from 'node:path';
import { allocate, type DType, type Tensor } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import { readRegularText } from '../directory/read-file.js';
import { ownersOf, readIndex } from './checkpoint.js';
import { dtypeFacts, nativeBytes, type SafetensorsDtype } from './dtypes.js';
import { fingerprintFrom, piecesOf, samplePlaces } from './fingerprint.js';
import type { TensorEntry } from './header.js';
import type { TensorReader } from './read.js';
import { Elsewhere, type RemoteShard, type ShardStream } from './stream.js';

interface Owned {
  readonly path: string;
  readonly shard: RemoteShard;
  names(): Iterable<string>;
}

/** Bytes of a tensor that come with the headers at most: what computes has passed its shard's digest. */
const SMALL = 64;
/** Plain weights, which need no decoding. */
const FLOATS: ReadonlySet<SafetensorsDtype> = new Set(['F32', 'F16', 'BF16']);
/** Bytes that are read at once. */
const COPY_BYTES = 2 ** 28;
/** Bytes of a piece that one thread reads beside the program, and how many of a tensor are on their way at once. */
const PIECE_BYTES = 2 ** 25;
const PIECES_AT_ONCE = 4;
/** Tensors of all experts that stay open: readers take them apart, each expert with a call. */
const OPEN_TENSORS = 2;

/** A tensor that is being read, and how many wait for it. */
interface Loading {
  readonly tensor: Promise<Tensor>;
  readers: number;
}

/**
 * The tensors of shards that come and go. Names, dtypes and shapes are known at once. A tensor is a copy, so that its shard may go at any
 * time; one whose shard is not here throws Elsewhere, which whenHere() waits for. Only shapes and single scales, which readers want at once, come
 * with the headers. load() waits for the shard itself, and reads on threads beside the program.
 */
export class StreamedTensors implements TensorReader {
  private readonly owner: ReadonlyMap<string, RemoteShard>;
  private readonly entries = new Map<string, TensorEntry>();
  private readonly small: ReadonlyMap<string, Uint8Array>;
  private readonly open = new Map<string, Tensor>();
  private readonly loading = new Map<string, Loading>();
  private print: string | undefined;

  /** `path`: a directory with config.json and the index. Throws LPQ_SAFETENSORS_INDEX. */
  constructor(
    readonly path: string,
    private readonly stream: ShardStream,
  ) {
    const index = readdirSync(path).find((name) => name.endsWith('.safetensors.index.json'));
    const files = stream.shards.map((shard): Owned => {
      for (const entry of shard.header.tensors) this.entries.set(entry.name, entry);
      const names = () => shard.header.tensors.map(({ name }) => name);
      return { path: join(path, shard.name), shard, names };
    });
    const owners = ownersOf(files, files.length > 1 && index ? readIndex(join(path, index)) : undefined);
    this.owner = new Map([...owners].map(([name, { shard }]) => [name, shard]));
    this.small = smallTensors(stream.shards);
  }

  names(): Iterable<string> {
    return this.owner.keys();
  }

  has(name: string): boolean {
    return this.owner.has(name);
  }

  spec(name: string): TensorEntry {
    const entry = this.entries.get(name);
    if (entry) return entry;
    throw new LpqError('LPQ_TENSOR_MISSING', `${this.path} has no tensor '${name}'`);
  }

  dtype(name: string): SafetensorsDtype {
    return this.spec(name).dtype;
  }

  shape(name: string): readonly number[] {
    return this.spec(name).shape;
  }

  /** Throws Elsewhere. */
  tensor(name: string, as?: DType): Tensor {
    const { dtype, shape, begin, end } = this.spec(name);
    const { bits, native } = dtypeFacts(dtype);
    const want = as ?? native ?? 'u8';
    const raw = as === undefined && native === undefined;
    if (!raw && nativeBytes(want) * 8 !== bits)
      throw new LpqError('LPQ_DTYPE', `tensor '${name}' of ${this.path} cannot be read as ${want}`, { got: dtype });
    const known = this.open.get(name);
    if (known?.dtype === want) return known.view(shape);
    const shard = this.owner.get(name) as RemoteShard;
    if (!this.small.has(name) && !this.stream.has(shard))
      throw new Elsewhere(name, shard, () => this.stream.need(shard));
    const tensor = allocate(want, raw ? [end - begin] : shape);
    try {
      this.fill(name, shard, tensor);
    } catch (error) {
      tensor.dispose();
      throw error;
    }
    if (shape.length > 2) this.keep(name, tensor);
    return tensor;
  }

  load(name: string): Promise<Tensor> | undefined {
    return FLOATS.has(this.dtype(name)) && !this.small.has(name) ? this.shared(name) : undefined;
  }

  advise(): void {}

  fingerprint(): string {
    this.print ??= fingerprintFrom(readRegularText(join(this.path, 'config.json')), this.stream.shards);
    return this.print;
  }

  close(): void {
    for (const tensor of this.open.values()) tensor.dispose();
    this.open.clear();
  }

  /** Several devices want the same tensor at once: it is read once, and each has a view of its own. */
  private async shared(name: string): Promise<Tensor> {
    let loading = this.loading.get(name);
    if (!loading) {
      loading = { tensor: this.loaded(name), readers: 0 };
      this.loading.set(name, loading);
    }
    loading.readers++;
    const tensor = await loading.tensor;
    const own = tensor.view(tensor.shape);
    if (--loading.readers === 0) tensor.dispose();
    return own;
  }

  /** Reads a tensor once its shard is here, in pieces; from when it settles on, another reader reads it again. */
  private async loaded(name: string): Promise<Tensor> {
    const { dtype, shape, begin, end } = this.spec(name);
    const shard = this.owner.get(name) as RemoteShard;
    let release = () => {};
    try {
      release = await this.stream.need(shard);
      const tensor = allocate(dtypeFacts(dtype).native as DType, shape);
      let at = 0;
      const reader = async () => {
        while (at < end - begin) {
          const from = at;
          at += PIECE_BYTES;
          const bytes = tensor.bytes(from, Math.min(PIECE_BYTES, end - begin - from));
          await this.stream.fill(shard, bytes, shard.header.dataStart + begin + from);
        }
      };
      const ended = await Promise.allSettled(Array.from({ length: PIECES_AT_ONCE }, reader));
      const failed = ended.find(({ status }) => status === 'rejected') as PromiseRejectedResult | undefined;
      if (!failed) return tensor;
      tensor.dispose();
      throw failed.reason;
    } finally {
      release();
      this.loading.delete(name);
    }
  }

  private fill(name: string, shard: RemoteShard, tensor: Tensor): void {
    const { begin, end } = this.spec(name);
    const small = this.small.get(name);
    if (small) {
      tensor.bytes().set(small);
      return;
    }
    for (let at = 0; at < end - begin; at += COPY_BYTES) {
      const bytes = tensor.bytes(at, Math.min(COPY_BYTES, end - begin - at));
      this.stream.read(shard, bytes, shard.header.dataStart + begin + at);
    }
  }

  private keep(name: string, tensor: Tensor): void {
    this.open.get(name)?.dispose();
    this.open.delete(name);
    this.open.set(name, tensor.view(tensor.shape));
    for (const [oldest, held] of this.open) {
      if (this.open.size <= OPEN_TENSORS) return;
      this.open.delete(oldest);
      held.dispose();
    }
  }
}

const { join } = path;

/** The bytes of tensors that their samples hold whole. */
function smallTensors(shards: readonly RemoteShard[]): Map<string, Uint8Array> {
  const small = new Map<string, Uint8Array>();
  const pieces = piecesOf(shards);
  for (const { header, samples } of shards) {
    const bytes = new Map(header.tensors.map(({ name, begin, end }) => [name, end - begin]));
    let at = 0;
    for (const { name, length } of samplePlaces(header, pieces)) {
      if (length === bytes.get(name) && length <= SMALL) small.set(name, samples.subarray(at, at + length));
      at += length;
    }
    for (const [name, length] of bytes) if (length === 0) small.set(name, new Uint8Array());
  }
  return small;
}
