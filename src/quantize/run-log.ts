import type { CanonicalWriter } from '../../formats/canonical/write.js';
import type { OutputDirectory } from '../../formats/directory/output-directory.js';
import { journalPath } from '../../formats/directory/partial.js';
import { tell } from '../core/activity.js';
import type { ModuleLine } from './events.js';
import { requireSame } from './identity.js';
import {
  type BlockKey,
  Journal,
  type JournalBlock,
  type JournalContents,
  type RunIdentity,
  readJournal,
} from './journal.js';

/** What an earlier run left in an output, before anything of it is touched; undefined: nothing finished. Throws LPQ_RESUME. */
export function earlierRun(output: OutputDirectory, identity: RunIdentity): JournalContents | undefined {
  const before = readJournal(journalPath(output.root));
  if (before) requireSame(output.root, before.run, identity);
  output.keep = (before?.blocks.size ?? 0) > 0;
  return before;
}

/**
 * Keeps the journal of a run. A block counts as finished when its tensors, and then its line, are on the disk; both happen
 * beside further work, for all blocks at once that are waiting.
 */
export class RunLog {
  /** Names of carried tensors that are written, and not noted yet. */
  private readonly written: string[] = [];
  private readonly waiting: { readonly key: BlockKey; readonly lines: readonly ModuleLine[] }[] = [];
  private running: Promise<void> | undefined;
  private failure: { readonly cause: unknown } | undefined;

  private constructor(
    private readonly output: OutputDirectory,
    private readonly writer: CanonicalWriter,
    private readonly journal: Journal,
    /** Blocks of the earlier run whose tensors are whole; the writer has them. */
    readonly kept: ReadonlyMap<BlockKey, JournalBlock>,
    /** Blocks that the earlier run had finished, but whose bytes are not those it wrote. */
    readonly damaged: readonly BlockKey[],
    /** Carried tensors that the earlier run left whole; the writer has them. */
    readonly carried: ReadonlySet<string>,
  ) {}

  /** Looks at every tensor that `before` names. Throws LPQ_DISK_FULL, LPQ_OUTPUT_WRITE. */
  static async open(
    output: OutputDirectory,
    writer: CanonicalWriter,
    identity: RunIdentity,
    before: JournalContents | undefined,
  ): Promise<RunLog> {
    const kept = new Map<BlockKey, JournalBlock>();
    const damaged: BlockKey[] = [];
    const blocks = [...(before?.blocks ?? [])];
    for (const [i, [key, block]] of blocks.entries()) {
      tell('checking finished blocks, block', i, blocks.length);
      if (await whole(writer, block)) {
        for (const { name, sha256, quality } of block.modules) await writer.adopt(name, sha256, quality);
        kept.set(key, block);
      } else damaged.push(key);
    }
    const carried = new Set<string>();
    for (const [name, sha256] of before?.carried ?? []) if (await writer.adoptCarried(name, sha256)) carried.add(name);
    const journal = await Journal.open(journalPath(output.root), identity, before);
    return new RunLog(output, writer, journal, kept, damaged, carried);
  }

  /** A block whose modules were all written; returns at once. Throws what an earlier one failed of. */
  finished(key: BlockKey, lines: readonly ModuleLine[]): void {
    if (this.failure) throw this.failure.cause;
    this.waiting.push({ key, lines });
    this.running ??= this.commit();
  }

  /** A carried tensor that was written whole; noted with the next block. */
  carriedOver(name: string): void {
    this.written.push(name);
  }

  /** Waits until all is on the disk. */
  async settle(): Promise<void> {
    await this.running;
    if (this.failure) throw this.failure.cause;
  }

  /** The same after a failure, whose cause is known already. */
  async close(): Promise<void> {
    await this.running;
    await this.journal.close();
  }

  private async blockOf(key: BlockKey, lines: readonly ModuleLine[]): Promise<JournalBlock> {
    const modules: JournalBlock['modules'] = [];
    for (const { name, scheme, tokens, seconds, measures, ...quality } of lines) {
      const sha256 = await this.writer.hashes(name);
      modules.push({ name, scheme, quality, tokens, seconds, ...(measures && { measures }), sha256 });
    }
    return { block: key, modules };
  }

  private async commit(): Promise<void> {
    try {
      while (this.waiting.length > 0) {
        const blocks: JournalBlock[] = [];
        for (const { key, lines } of this.waiting.splice(0)) blocks.push(await this.blockOf(key, lines));
        const carried = await this.writer.carriedHashes(this.written.splice(0));
        await this.writer.sync();
        await this.journal.append([...(Object.keys(carried).length > 0 ? [{ carried }] : []), ...blocks]);
        this.output.keep = true;
      }
    } catch (cause) {
      this.failure = { cause };
    } finally {
      this.running = undefined;
    }
  }
}

async function whole(writer: CanonicalWriter, block: JournalBlock): Promise<boolean> {
  for (const { name, sha256 } of block.modules) if (!(await writer.holds(name, sha256))) return false;
  return true;
}

/** The line of a module as the run that finished it told it. */
export function lineOf({
  name,
  scheme,
  quality,
  tokens,
  seconds,
  measures,
}: JournalBlock['modules'][number]): ModuleLine {
  return { name, scheme, ...quality, tokens, seconds, ...(measures && { measures }) };
}
