import { createHash, type Hash } from 'node:crypto';
import { constants } from 'node:fs';
import { type FileHandle, open, rename } from 'node:fs/promises';
import { LpqError } from '../core/error.js';
import { sizeOf } from './cache.js';
import type { Answer, HubClient } from './client.js';
import { cutOff, header, place, refusal, type Transient } from './failures.js';
import type { HubFile } from './listing.js';
import type { ModelName } from './name.js';

/** What one file is downloaded from and to. */
export interface Download {
  readonly model: ModelName;
  readonly file: HubFile;
  readonly url: string;
  /** The path of the blob; BLOB.incomplete holds what has come so far. */
  readonly blob: string;
  /** Called with bytes that came, or a negative number for those that must come again. */
  readonly onBytes?: ((count: number) => void) | undefined;
  /** Most bytes of one request. The Hub's servers give out files above 50 GB only in parts. Default 8 GiB. */
  readonly partBytes?: number | undefined;
}

/** Bytes that are hashed and written in one go; fewer where they come slowly, so that little is lost with a process. */
const BLOCK = 2 ** 20;
const SLOW_MS = 250;

/** The bytes of one blob on their way into BLOB.incomplete, and through the digest. */
export class Transfer {
  /** Bytes that are in the file and in the hash. */
  private at = 0;
  /** How far it ever was: what counts as progress. */
  private furthest = 0;
  private hash: Hash;
  /** Whether bytes came that cannot belong to it. */
  spoiled = false;
  /** Whether bytes of an earlier run are part of it. */
  resumed = false;
  /** The tags of hosts that the Hub sent us to, for If-Range. */
  private readonly tags = new Map<string, string>();

  private constructor(
    private readonly client: HubClient,
    private readonly download: Download,
    private readonly incomplete: string,
    private readonly handle: FileHandle,
  ) {
    this.hash = this.newHash();
  }

  static async open(client: HubClient, download: Download, incomplete: string): Promise<Transfer> {
    const flags = constants.O_RDWR | constants.O_CREAT | constants.O_NOFOLLOW;
    const handle = await open(incomplete, flags, 0o666);
    const transfer = new Transfer(client, download, incomplete, handle);
    try {
      await transfer.takeUp();
      return transfer;
    } catch (error) {
      await transfer.close();
      throw error;
    }
  }

  private get what(): string {
    return `${this.download.file.path} of ${this.download.model.id}`;
  }

  private newHash(): Hash {
    const { digest, size } = this.download.file;
    // git hashes "blob SIZE\0" before the bytes.
    return digest === 'sha256' ? createHash('sha256') : createHash('sha1').update(`blob ${size}\0`);
  }

  /** Puts what an earlier run left through the hash. */
  private async takeUp(): Promise<void> {
    const { size } = await this.handle.stat();
    if (size > this.download.file.size) return this.startOver();
    const buffer = Buffer.allocUnsafe(Math.min(4 * BLOCK, Math.max(1, size)));
    while (this.at < size) {
      this.client.check();
      const { bytesRead } = await this.handle.read(buffer, 0, Math.min(buffer.length, size - this.at), this.at);
      if (bytesRead === 0) break;
      this.hash.update(buffer.subarray(0, bytesRead));
      this.advance(bytesRead);
    }
    this.resumed = this.at > 0;
  }

  private advance(count: number): void {
    this.at += count;
    this.furthest = Math.max(this.furthest, this.at);
    this.download.onBytes?.(count);
  }

  private async startOver(): Promise<void> {
    this.download.onBytes?.(-this.at);
    this.at = 0;
    this.resumed = false;
    this.hash = this.newHash();
    await this.handle.truncate(0);
  }

  /** Asks for what is missing until nothing is. */
  async run(): Promise<void> {
    while (this.at < this.download.file.size)
      await this.client.persist(
        () => this.part(),
        () => this.furthest,
      );
  }

  private async part(): Promise<void> {
    const { file, url, model, partBytes = 2 ** 33 } = this.download;
    const ranged = this.at > 0 || file.size > partBytes;
    const last = Math.min(file.size, this.at + partBytes) - 1;
    const answer = await this.client.send(url, this.what, (target, own) => {
      // The Hub's own tag is the one of the listing; a host that it sends us to has its own.
      const tag = own ? `"${file.etag}"` : this.tags.get(target.origin);
      if (!ranged) return {};
      return { range: `bytes=${this.at}-${last}`, ...(this.at > 0 && tag !== undefined && { 'if-range': tag }) };
    });
    try {
      await this.receive(answer, ranged, refusalOf);
    } finally {
      answer.body.destroy();
    }
    function refusalOf(what: string, hasToken: boolean): LpqError | Transient {
      return refusal(answer.status, answer.headers, answer.url, { ...model, what, hasToken });
    }
  }

  private async receive(
    answer: Answer,
    ranged: boolean,
    refusalOf: (what: string, hasToken: boolean) => LpqError | Transient,
  ): Promise<void> {
    const { file } = this.download;
    const { status, headers, url } = answer;
    // What is here does not fit what is there.
    if (status === 416) {
      await this.startOver();
      throw cutOff(this.what, `status 416 of ${place(url)}`);
    }
    if (status !== 200 && !(status === 206 && ranged)) throw refusalOf(this.what, this.client.hasToken);
    const encoding = header(headers, 'content-encoding');
    if (encoding !== undefined && encoding !== 'identity')
      throw this.wrong('comes compressed, which lpq did not request', encoding);
    const tag = header(headers, 'etag');
    if (tag?.startsWith('"')) this.tags.set(new URL(url).origin, tag);
    let end = file.size;
    if (status === 206) {
      const range = header(headers, 'content-range') ?? '';
      const [, from = '', to = '', total = ''] = /^bytes (\d+)-(\d+)\/(\d+|\*)$/.exec(range) ?? [];
      if (total !== '*' && Number(total) !== file.size) throw this.otherSize(total || range || 'no Content-Range');
      if (Number(from) !== this.at || to === '' || Number(to) >= file.size)
        throw this.wrong('comes from another place than lpq requested', range);
      end = Number(to) + 1;
    } else {
      // No ranges here, or the bytes have changed: all of it once more.
      const length = header(headers, 'content-length');
      if (length !== undefined && Number(length) !== file.size) throw this.otherSize(`${length} bytes`);
      if (this.at > 0) await this.startOver();
    }
    await this.store(answer, end);
    if (this.at < end) throw cutOff(this.what, `${this.at} of ${file.size} bytes, from ${place(url)}`);
  }

  private async store(answer: Answer, end: number): Promise<void> {
    let pending: Buffer[] = [];
    let length = 0;
    let flushed = performance.now();
    const flush = async () => {
      flushed = performance.now();
      const [blocks, count] = [pending, length];
      [pending, length] = [[], 0];
      if (count === 0) return;
      await writeAll(this.handle, Buffer.concat(blocks, count), this.at);
      for (const block of blocks) this.hash.update(block);
      this.advance(count);
    };
    const pieces = (answer.body as AsyncIterable<Buffer>)[Symbol.asyncIterator]();
    for (;;) {
      let piece: IteratorResult<Buffer, unknown>;
      try {
        piece = await pieces.next();
      } catch (cause) {
        await flush();
        throw this.client.failure(cause, answer.url, this.what);
      }
      if (piece.done) break;
      if (this.at + length + piece.value.length > end) {
        this.spoiled = true;
        throw this.otherSize(`more than ${end} bytes`);
      }
      pending.push(piece.value);
      length += piece.value.length;
      if (length >= BLOCK || performance.now() - flushed > SLOW_MS) await flush();
    }
    await flush();
  }

  digest(): string {
    return this.hash.digest('hex');
  }

  /** The blob appears in full or not at all, also after a power cut. */
  async finish(blob: string): Promise<void> {
    await this.handle.sync();
    await rename(this.incomplete, blob).catch((error: NodeJS.ErrnoException) => {
      // Where there are no locks, another process may have finished the same bytes first.
      if (error.code !== 'ENOENT' || sizeOf(blob) !== this.download.file.size) throw error;
    });
  }

  async close(): Promise<void> {
    await this.handle.close().catch(() => {});
  }

  private otherSize(got: string): LpqError {
    return new LpqError('LPQ_HUB_CHECKSUM', `${this.what} does not have the size of the Hub's listing`, {
      got,
      expected: `${this.download.file.size} bytes`,
      hint: 'Run the command again; if it happens twice, a proxy or HF_ENDPOINT sends other bytes.',
    });
  }

  private wrong(how: string, got: string): LpqError {
    return new LpqError('LPQ_HUB_RESPONSE', `${this.what} ${how}`, {
      got: got || 'no Content-Range',
      hint: 'Check HF_ENDPOINT and the proxy.',
    });
  }
}

async function writeAll(handle: FileHandle, bytes: Buffer, position: number): Promise<void> {
  for (let done = 0; done < bytes.length; ) {
    const { bytesWritten } = await handle.write(bytes, done, bytes.length - done, position + done);
    done += bytesWritten;
  }
}
