import { closeSync, openSync, read, readSync, rmSync, statSync } from 'node:fs';
import { promisify } from 'node:util';
import { samplePlaces } from '../../formats/safetensors/fingerprint.js';
import type { RemoteShard } from '../../formats/safetensors/stream.js';
import { LpqError } from '../core/error.js';
import type { HubFile } from '../hub/listing.js';

const readBeside = promisify(read);

/** A shard and its file, which comes and goes. */
export class Place {
  /** The open file; undefined while it is not here, whole. */
  private fd: number | undefined;
  /** Bytes that count for it: of the whole file once it is being fetched, or of what is left of one. */
  held = 0;
  /** Who needs the file to stay. */
  pins = 0;
  /** When it was last read, by a count. */
  used = 0;
  /** Being fetched, or waiting for room. */
  fetching: Promise<void> | undefined;
  /** Its bytes are coming. */
  flying = false;

  /** `own`: whether it lies in the stream's folder, and goes again. */
  constructor(
    readonly shard: RemoteShard,
    readonly file: HubFile,
    readonly path: string,
    readonly own: boolean,
  ) {}

  get here(): boolean {
    return this.fd !== undefined;
  }

  /** Takes up what is on the disk: the whole file, or a part of it. */
  takeUp(): void {
    const size = sizeOf(this.path);
    if (size === this.file.size) this.open();
    else if (size !== undefined && this.own) rmSync(this.path, { force: true });
    this.count();
  }

  /** Counts what is on the disk. */
  count(): void {
    if (!this.own) return;
    this.held = this.here ? this.file.size : Math.min(this.file.size, sizeOf(`${this.path}.incomplete`) ?? 0);
  }

  open(): void {
    this.fd ??= openSync(this.path, 'r');
  }

  /** Throws LPQ_FILE. */
  read(into: Uint8Array, position: number): void {
    for (let done = 0; done < into.length; ) {
      const got = readSync(this.fd as number, into, done, into.length - done, position + done);
      done += this.more(got);
    }
  }

  /** The same on a thread beside this one. The file stays open until it settles (`pins`). Throws LPQ_FILE. */
  async fill(into: Uint8Array, position: number): Promise<void> {
    for (let done = 0; done < into.length; ) {
      const { bytesRead } = await readBeside(this.fd as number, into, done, into.length - done, position + done);
      done += this.more(bytesRead);
    }
  }

  private more(got: number): number {
    if (got === 0) throw new LpqError('LPQ_FILE', `${this.path} became shorter while lpq read it`);
    return got;
  }

  /**
   * What came in parts before must be what came now. Throws LPQ_HUB_CHECKSUM, and forgets the parts. `pieces`: of each tensor of the
   * checkpoint.
   */
  check(pieces: number): void {
    const { header, head, samples, name } = this.shard;
    let same = this.matches(head, 0);
    let at = 0;
    for (const piece of samplePlaces(header, pieces)) {
      same &&= this.matches(samples.subarray(at, at + piece.length), piece.at);
      at += piece.length;
    }
    if (same) return;
    rmSync(`${this.path}.head`, { force: true });
    throw new LpqError('LPQ_HUB_CHECKSUM', `${name} differs from the parts of it that came before`, {
      hint: 'Run the command again, with --restart after finished blocks; if it happens twice, a proxy or HF_ENDPOINT sends other bytes.',
    });
  }

  private matches(bytes: Uint8Array, at: number): boolean {
    const own = new Uint8Array(bytes.length);
    this.read(own, at);
    return Buffer.compare(own, bytes) === 0;
  }

  close(): void {
    if (this.fd !== undefined) closeSync(this.fd);
    this.fd = undefined;
  }

  /** The file goes, and what is left of one. */
  drop(): void {
    this.close();
    for (const file of [this.path, `${this.path}.incomplete`]) rmSync(file, { force: true });
    this.held = 0;
  }
}

function sizeOf(file: string): number | undefined {
  const found = statSync(file, { throwIfNoEntry: false });
  return found?.isFile() ? found.size : undefined;
}
