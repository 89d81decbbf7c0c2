import { existsSync, rmSync } from 'node:fs';
import { open, rename, rm, truncate } from 'node:fs/promises';
import path from 'node:path';
import { requireWholeFiles } from '../../native/binding.js';
import { tell } from '../../src/core/activity.js';
import { LpqError } from '../../src/core/error.js';
import { sync } from '../directory/output-directory.js';
import { writeError } from '../directory/write-error.js';
import type { TensorData } from './hash.js';
import type { TensorSpec } from './header.js';
import { type PlannedShard, planShards, type ShardPlan } from './shard-plan.js';
import { type ShardFile, TensorSlot, writeFully } from './tensor-slot.js';

export interface WriterOptions {
  /** Bytes of tensors a shard: 5e9 unless told. */
  readonly maxShardBytes?: number;
  /** Default: {format: 'pt'}, which transformers insists on. */
  readonly metadata?: Readonly<Record<string, string>>;
  /** model -> model.safetensors, model-00001-of-00002.safetensors. */
  readonly stem?: string;
  /** Tensors of different parts are in different files; the files of a part follow each other. */
  readonly partOf?: (tensor: string) => number | undefined;
  /**
   * The directory is itself a partial output: files have their final names and size from the start, those that an
   * earlier writer of the same plan left are opened again (holds, adopt), and a failure leaves all in place.
   */
  readonly partial?: boolean;
  /** Refuses NaN and infinity (LPQ_MODULE_NUMERICS) in every tensor of a float dtype, beside the hash. */
  readonly finite?: boolean;
  /** Told the path of a file as soon as all of its bytes have come and their hashes are known; rewrite() is not for such a file. */
  readonly onWhole?: (file: string) => Promise<void>;
  /** Opens a file for reading and writing; for tests of failing disks. */
  readonly openFile?: (path: string) => Promise<ShardFile>;
}

/** What finish() tells: enough to fill a manifest. */
export interface WrittenTensors {
  /** The shards, and the index if there is one. */
  readonly files: readonly string[];
  readonly totalSize: number;
  /** tensor name -> its hash (hash.ts). */
  readonly sha256: ReadonlyMap<string, string>;
}

/** Bytes after which a file is flushed beside further writing, so that finish() waits for the last of them only. */
export const FLUSH_BYTES = 2 ** 28;

interface OpenFile {
  readonly file: ShardFile;
  readonly path: string;
  unsynced: number;
  /** Tensors whose bytes have not all come. */
  readonly lacking: Set<string>;
}

/**
 * Streams tensors into sharded safetensors files. All are declared first, so that headers, shards and offsets are fixed
 * before the first byte; then their bytes come in any order, whole or by rows, also concurrently. Files have temporary
 * names until finish() has synced them. After any failure nothing is left and every further call fails alike.
 */
export class SafetensorsWriter {
  private readonly slots = new Map<string, TensorSlot>();
  private failure: LpqError | undefined;
  private ended = false;
  private removal: Promise<void> | undefined;
  private readonly files = new Map<string, OpenFile>();
  private flushing: Promise<void> | undefined;

  private constructor(
    readonly dir: string,
    readonly plan: ShardPlan,
    private readonly opened: readonly { shard: PlannedShard; temporary: string; file: ShardFile }[],
    private readonly partial: boolean,
    finite: boolean,
    private readonly onWhole: WriterOptions['onWhole'],
  ) {
    for (const { shard, file, temporary } of opened) {
      const written = { file, path: temporary, unsynced: 0, lacking: new Set(shard.tensors.map(({ name }) => name)) };
      for (const entry of shard.tensors) {
        this.slots.set(entry.name, new TensorSlot(entry, file, shard.header.length, finite));
        this.files.set(entry.name, written);
      }
    }
  }

  /**
   * Plans and opens the files in `dir`, which must exist. Throws LPQ_INTERNAL for specs that break the format,
   * LPQ_OUTPUT_EXISTS, LPQ_DISK_FULL and LPQ_OUTPUT_WRITE.
   */
  static async create(
    dir: string,
    specs: readonly TensorSpec[],
    options: WriterOptions = {},
  ): Promise<SafetensorsWriter> {
    const plan = planShards(specs, options);
    const { partial = false, finite = false, onWhole } = options;
    const names = [...plan.shards.map((shard) => shard.file), ...(plan.index ? [plan.index.file] : [])];
    for (const file of partial ? [] : names)
      if (existsSync(path.join(dir, file)))
        throw new LpqError('LPQ_OUTPUT_EXISTS', `the output ${path.join(dir, file)} already exists`, {
          hint: 'Choose another path, or remove it first; lpq never overwrites.',
        });
    const openFile = options.openFile ?? ((name) => open(name, partial && existsSync(name) ? 'r+' : 'wx+'));
    const opened: { shard: PlannedShard; temporary: string; file: ShardFile }[] = [];
    const temporaryOf = ({ file }: PlannedShard) => path.join(dir, partial ? file : `.${file}.lpq-tmp-${process.pid}`);
    let writer: SafetensorsWriter | undefined;
    try {
      for (const shard of plan.shards)
        opened.push({ shard, temporary: temporaryOf(shard), file: await openFile(temporaryOf(shard)) });
      writer = new SafetensorsWriter(dir, plan, opened, partial, finite, onWhole);
      for (const { shard, temporary, file } of opened) {
        await writeFully(file, shard.header, 0);
        // Whole files can be mapped; what has not come yet takes no space.
        if (partial) await truncate(temporary, shard.fileBytes);
      }
      return writer;
    } catch (cause) {
      await (writer ?? new SafetensorsWriter(dir, plan, opened, partial, finite, onWhole)).abort();
      throw writeError(path.join(dir, plan.shards[opened.length]?.file ?? plan.shards[0]?.file ?? ''), cause);
    }
  }

  /**
   * Writes a whole tensor; `data` must stay as it is until this settles. Throws LPQ_INTERNAL when name, dtype or size
   * differ from the declaration.
   */
  async write(name: string, data: TensorData): Promise<void> {
    await this.run((slot) => slot.write(data), name);
    this.flush(name, data.byteLength);
    await this.whole(name);
  }

  /** Writes a tensor that was written whole, or adopted, once more. */
  async rewrite(name: string, data: TensorData): Promise<void> {
    await this.run((slot) => slot.rewrite(data), name);
    this.flush(name, data.byteLength);
  }

  /**
   * Writes rows (along the first dimension) `firstRow` and following. Each row once, in any order; in ascending order
   * the hash is computed on the way, else by reading back at the end.
   */
  async writeRows(name: string, firstRow: number, data: TensorData): Promise<void> {
    await this.run((slot) => slot.writeRows(firstRow, data), name);
    this.flush(name, data.byteLength);
    await this.whole(name);
  }

  /** Whether a file holds the tensor `name` of this hash; for partial outputs. */
  async holds(name: string, sha256: string): Promise<boolean> {
    let found = false;
    await this.run(async (slot) => {
      found = await slot.holds(sha256);
    }, name);
    return found;
  }

  /** Counts a tensor that holds() found as written. */
  adopt(name: string, sha256: string): Promise<void> {
    return this.run(async (slot) => slot.adopt(sha256), name);
  }

  /** The hash of a tensor whose bytes have all come. */
  async digest(name: string): Promise<string> {
    let sha256 = '';
    await this.run(async (slot) => {
      sha256 = await slot.finish();
    }, name);
    return sha256;
  }

  /** Settles when everything written before the call is on the disk. */
  async sync(): Promise<void> {
    this.check();
    try {
      for (const { file } of this.opened) await file.sync();
    } catch (cause) {
      await this.fail(cause, this.dir);
    }
    this.check();
  }

  /**
   * Syncs and renames; writes the index. Throws LPQ_INTERNAL naming a tensor whose bytes never came. The writer is
   * spent afterwards.
   */
  async finish(): Promise<WrittenTensors> {
    this.check();
    try {
      const sha256 = new Map<string, string>();
      for (const [name, slot] of this.slots) sha256.set(name, await slot.finish());
      await this.flushing;
      requireWholeFiles();
      this.check();
      for (const [i, { shard, file }] of this.opened.entries()) {
        tell(`waiting for the disk: ${shard.file}`, i, this.opened.length);
        await file.sync();
        await file.close();
      }
      const files = this.plan.shards.map(({ file }) => file);
      for (const { shard, temporary } of this.opened) await rename(temporary, path.join(this.dir, shard.file));
      if (this.plan.index) {
        await writeSynced(path.join(this.dir, this.plan.index.file), this.plan.index.text);
        files.push(this.plan.index.file);
      }
      await sync(this.dir);
      this.ended = true;
      return { files, totalSize: this.plan.totalSize, sha256 };
    } catch (cause) {
      await this.fail(cause, this.dir);
      // Some may have their final names already.
      if (!this.partial) await this.removeFinal();
      throw this.failure;
    }
  }

  private async removeFinal(): Promise<void> {
    for (const { file } of this.plan.shards) await rm(path.join(this.dir, file), { force: true });
    if (this.plan.index) await rm(path.join(this.dir, this.plan.index.file), { force: true });
  }

  /** Closes and removes the files. Harmless after finish() and when called twice. */
  async abort(): Promise<void> {
    if (this.ended && !this.removal) return;
    this.ended = true;
    // Callers that fail together wait for the same removal.
    this.removal ??= this.remove();
    await this.removal;
  }

  private async remove(): Promise<void> {
    for (const { file } of this.opened) await file.close().catch(() => {});
    if (this.partial) return;
    for (const { temporary } of this.opened) rmSync(temporary, { force: true });
  }

  private async run(body: (slot: TensorSlot) => Promise<void>, name: string): Promise<void> {
    this.check();
    const slot = this.slots.get(name);
    if (!slot) throw new LpqError('LPQ_INTERNAL', `tensor '${name}' was not declared before it was written`);
    try {
      await body(slot);
    } catch (cause) {
      if (this.removal && !this.failure) {
        await this.removal; // abort() has closed the file below it
        this.check();
      }
      await this.fail(cause, path.join(this.dir, name));
      throw this.failure;
    }
  }

  /** Starts a sync where enough has gathered and none is under way. Its failure is that of the next call. */
  private flush(name: string, bytes: number): void {
    const written = this.files.get(name);
    if (!written || this.ended) return;
    written.unsynced += bytes;
    if (written.unsynced < FLUSH_BYTES || this.flushing) return;
    written.unsynced = 0;
    this.flushing = written.file
      .sync()
      .catch((cause) => this.fail(cause, path.join(this.dir, name)))
      .finally(() => {
        this.flushing = undefined;
      });
  }

  /** Tells of the file of a tensor when it was the last that came. */
  private async whole(name: string): Promise<void> {
    const { onWhole } = this;
    const written = this.files.get(name);
    if (!onWhole || !written?.lacking.has(name) || !this.slots.get(name)?.hasHash) return;
    written.lacking.delete(name);
    if (written.lacking.size === 0) await this.run(() => onWhole(written.path), name);
  }

  private async fail(cause: unknown, place: string): Promise<void> {
    this.failure ??= writeError(place, cause);
    await this.abort();
  }

  private check(): void {
    if (this.failure) throw this.failure;
    if (this.ended) throw new LpqError('LPQ_INTERNAL', `the writer of ${this.dir} was finished or aborted before`);
  }
}

/** Writes a few tensors, and words of `metadata`, to DIR/NAME.safetensors in one call. Errors as SafetensorsWriter. */
export async function writeSafetensors(
  file: string,
  tensors: readonly (TensorSpec & { readonly data: TensorData })[],
  metadata?: Readonly<Record<string, string>>,
): Promise<WrittenTensors> {
  const stem = path.basename(file).replace(/\.safetensors$/, '');
  if (stem === path.basename(file))
    throw new LpqError('LPQ_USAGE', `${file} must end in .safetensors`, { got: path.basename(file) });
  const writer = await SafetensorsWriter.create(path.dirname(file), tensors, {
    stem,
    maxShardBytes: Number.POSITIVE_INFINITY,
    ...(metadata && { metadata }),
  });
  for (const { name, data } of tensors) await writer.write(name, data);
  return writer.finish();
}

async function writeSynced(file: string, text: string): Promise<void> {
  const temporary = path.join(path.dirname(file), `.${path.basename(file)}.lpq-tmp-${process.pid}`);
  try {
    const handle = await open(temporary, 'w');
    try {
      await handle.writeFile(text);
      await handle.sync();
    } finally {
      await handle.close();
    }
    await rename(temporary, file);
  } catch (cause) {
    await rm(temporary, { force: true });
    throw cause;
  }
}
