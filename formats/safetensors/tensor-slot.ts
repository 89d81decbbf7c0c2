import { LpqError } from '../../src/core/error.js';
import { dtypeFacts } from './dtypes.js';
import { requireFinite } from './finite.js';
import { bytesOf, CHUNK_BYTES, type RunningHash, startTensorHash, type TensorData } from './hash.js';
import type { TensorEntry } from './header.js';

/** The part of a node FileHandle that writing needs. */
export interface ShardFile {
  write(bytes: Uint8Array, offset: number, length: number, position: number): Promise<{ bytesWritten: number }>;
  read(bytes: Uint8Array, offset: number, length: number, position: number): Promise<{ bytesRead: number }>;
  sync(): Promise<void>;
  close(): Promise<void>;
}

/** write(2) may write less than it was given. */
export async function writeFully(file: ShardFile, bytes: Uint8Array, position: number): Promise<void> {
  for (let at = 0; at < bytes.length; ) {
    const { bytesWritten } = await file.write(bytes, at, bytes.length - at, position + at);
    at += bytesWritten;
  }
}

/** The place of one tensor in a file that is being written: which rows have come, and the hash so far. */
export class TensorSlot {
  private readonly bytes: number;
  private readonly rows: number;
  private readonly position: number;
  /** Rows [first, end) that were claimed, ascending and merged. */
  private claimed: { first: number; end: number }[] = [];
  private written = 0;
  private hash: Promise<RunningHash> | undefined;
  /** The hash of the whole tensor (name, dtype, shape and bytes), once it is known. */
  private known: string | undefined;
  /** How far the hash has come while rows arrive in order; undefined once they did not. */
  private hashed: number | undefined = 0;
  /** Writes to one tensor run one after another, so that concurrent callers cannot interleave in the hash. */
  private tail: Promise<void> = Promise.resolve();

  constructor(
    private readonly entry: TensorEntry,
    private readonly file: ShardFile,
    dataStart: number,
    /** Whether NaN and infinity are refused. */
    private readonly finite = false,
  ) {
    this.bytes = entry.end - entry.begin;
    this.rows = entry.shape.length > 0 && this.bytes > 0 ? (entry.shape[0] as number) : 1;
    this.position = dataStart + entry.begin;
  }

  async write(data: TensorData): Promise<void> {
    this.checkDtype(data);
    if (data.byteLength !== this.bytes)
      this.bad(
        `it got ${data.byteLength} bytes instead of the ${this.bytes} of ${this.entry.dtype} [${this.entry.shape}]`,
      );
    this.claim(0, this.rows);
    await this.put(0, data);
  }

  /** Whole bytes in the place of those that have come. */
  async rewrite(data: TensorData): Promise<void> {
    await this.tail;
    [this.claimed, this.written, this.hash, this.known, this.hashed] = [[], 0, undefined, undefined, 0];
    await this.write(data);
  }

  async writeRows(firstRow: number, data: TensorData): Promise<void> {
    this.checkDtype(data);
    const rowBytes = this.bytes / this.rows;
    const count = data.byteLength / rowBytes;
    if (this.bytes === 0 || !Number.isInteger(rowBytes) || !Number.isInteger(count))
      this.bad(`${data.byteLength} bytes are not whole rows of ${rowBytes} bytes`);
    if (!Number.isInteger(firstRow) || firstRow < 0 || firstRow + count > this.rows)
      this.bad(`rows ${firstRow} to ${firstRow + count - 1} lie outside its ${this.rows}`);
    if (count === 0) return;
    this.claim(firstRow, firstRow + count);
    await this.put(firstRow * rowBytes, data);
  }

  /** Whether its bytes have all come, and their hash is known without reading them. */
  get hasHash(): boolean {
    return this.written === this.bytes && this.known !== undefined;
  }

  /** The hash of the tensor. Throws LPQ_INTERNAL when bytes are missing. May be called again. */
  async finish(): Promise<string> {
    if (this.written !== this.bytes) this.bad(`only ${this.written} of its ${this.bytes} bytes were given`);
    this.known ??= await this.readBack();
    return this.known;
  }

  /** Whether the file holds the tensor of this hash here: what an earlier writer of the same plan left. */
  async holds(sha256: string): Promise<boolean> {
    return (await this.readBack()) === sha256;
  }

  /** Counts the tensor as written; holds() has said that its bytes are there. */
  adopt(sha256: string): void {
    this.claim(0, this.rows);
    this.written = this.bytes;
    this.known = sha256;
  }

  /** The hash of what the file holds: of rows that did not come in order, or of an earlier writer. */
  private async readBack(): Promise<string> {
    const hash = await startTensorHash(this.entry);
    const buffer = Buffer.alloc(Math.min(CHUNK_BYTES, this.bytes));
    for (let at = 0; at < this.bytes; ) {
      const length = Math.min(buffer.length, this.bytes - at);
      const { bytesRead } = await this.file.read(buffer, 0, length, this.position + at);
      if (bytesRead === 0) throw Object.assign(new Error('the file shrank while it was written'), { code: 'EIO' });
      await hash.update(buffer.subarray(0, bytesRead));
      at += bytesRead;
    }
    return hash.digest();
  }

  private put(offset: number, data: TensorData): Promise<void> {
    const turn = this.tail.then(() => this.append(offset, data));
    this.tail = turn.catch(() => {});
    return turn;
  }

  private async append(offset: number, data: TensorData): Promise<void> {
    const inOrder = this.hashed === offset;
    // Hashed while it is written; both are waited for in any case, for the caller may let go of the bytes afterwards.
    if (inOrder) this.hash ??= startTensorHash(this.entry);
    const hashing = inOrder ? this.hash?.then((hash) => hash.update(data)) : undefined;
    const outcomes = await Promise.allSettled([this.store(offset, data), hashing, this.checkFinite(offset, data)]);
    for (const outcome of outcomes) if (outcome.status === 'rejected') throw outcome.reason;
    this.hashed = inOrder ? offset + data.byteLength : undefined;
    if (this.hashed === this.bytes && this.hash) this.complete(await this.hash);
    else if (!inOrder) this.hash = undefined;
  }

  private async checkFinite(offset: number, data: TensorData): Promise<void> {
    if (!this.finite) return;
    const { name, dtype, shape } = this.entry;
    const { bits, native } = dtypeFacts(dtype);
    await requireFinite(name, data, native, shape, (offset * 8) / bits);
  }

  /** One slot has thousands of neighbours in a checkpoint of experts: the state goes as soon as the digest is known. */
  private complete(hash: RunningHash): void {
    this.known = hash.digest();
    this.hash = undefined;
  }

  private async store(offset: number, data: TensorData): Promise<void> {
    for (let at = 0; at < data.byteLength; at += CHUNK_BYTES) {
      const chunk = bytesOf(data, at, Math.min(CHUNK_BYTES, data.byteLength - at));
      await writeFully(this.file, chunk, this.position + offset + at);
      this.written += chunk.length;
    }
  }

  private claim(first: number, end: number): void {
    const at = this.claimed.findIndex((range) => range.end >= first);
    const i = at < 0 ? this.claimed.length : at;
    const before = this.claimed[i];
    if (before && before.first < end && first < before.end) this.bad(`its rows from ${first} were written twice`);
    const joins = before !== undefined && before.end === first;
    const range = joins ? { first: before.first, end } : { first, end };
    const after = this.claimed[joins ? i + 1 : i];
    if (after && after.first < end) this.bad(`its rows from ${after.first} were written twice`);
    const touches = after !== undefined && after.first === end;
    if (touches) range.end = after.end;
    this.claimed.splice(i, (joins ? 1 : 0) + (touches ? 1 : 0), range);
  }

  private checkDtype(data: TensorData): void {
    if (ArrayBuffer.isView(data)) return;
    const { native } = dtypeFacts(this.entry.dtype);
    // u8 stands for raw bytes on either side: E8M0 is stored as U8, F4 arrives as bytes.
    if (data.dtype !== (native ?? 'u8') && data.dtype !== 'u8' && native !== 'u8')
      this.bad(`it was declared ${this.entry.dtype} and given ${data.dtype}`);
    if (native === 'u8' && !['u8', 'i8', 'bool', 'f8_e4m3', 'f8_e5m2', 'f8_e8m0'].includes(data.dtype))
      this.bad(`it was declared U8 and given ${data.dtype}`);
  }

  private bad(why: string): never {
    throw new LpqError('LPQ_INTERNAL', `tensor '${this.entry.name}' cannot be written: ${why}`);
  }
}
