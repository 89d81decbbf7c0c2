import { readFileSync } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { z } from 'zod';
import { qualitySchema, sha256Schema } from '../../formats/canonical/schema.js';
import { writeError } from '../../formats/directory/write-error.js';
import { measuresSchema } from '../../formats/report/schema.js';
import { requireWholeFiles } from '../../native/binding.js';
import { LpqError } from '../core/error.js';

/** What a run's bytes depend on, by the names that messages use; `derived` follows from `given`, but for defects. */
export interface RunIdentity {
  readonly given: Readonly<Record<string, unknown>>;
  readonly derived: Readonly<Record<string, unknown>>;
}

const identitySchema = z.strictObject({
  given: z.record(z.string(), z.unknown()),
  derived: z.record(z.string(), z.unknown()),
});

/** First line. */
const headerSchema = z.strictObject({ format: z.literal('lpq-journal'), version: z.literal(1), run: identitySchema });

/** Other lines: a block, or 'head', whose tensors are on the disk. A later line of the same block counts. */
const blockSchema = z.strictObject({
  block: z.union([z.int().nonnegative(), z.literal('head')]),
  modules: z.array(
    z.strictObject({
      name: z.string(),
      scheme: z.string(),
      quality: qualitySchema,
      tokens: z.number().nullable(),
      seconds: z.number(),
      measures: measuresSchema.optional(),
      /** By part, as in lpq.json. */
      sha256: z.record(z.string(), sha256Schema),
    }),
  ),
});
export type JournalBlock = z.infer<typeof blockSchema>;

/** Or tensors that went through unchanged, with their hashes, where the source may not be at hand any more. */
const carriedSchema = z.strictObject({ carried: z.record(z.string(), sha256Schema) });
export type BlockKey = JournalBlock['block'];

/** What a journal says, and how many of its bytes say it: a torn last line is none. */
export interface JournalContents {
  readonly run: RunIdentity;
  readonly blocks: ReadonlyMap<BlockKey, JournalBlock>;
  /** Hashes of carried tensors. */
  readonly carried: ReadonlyMap<string, string>;
  readonly bytes: number;
}

/**
 * Reads a journal; undefined where there is none, or only a torn first line: nothing was finished then. Throws LPQ_JOURNAL
 * naming the line that no run wrote, LPQ_FILE.
 */
export function readJournal(file: string): JournalContents | undefined {
  let text: Buffer;
  try {
    text = readFileSync(file);
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw new LpqError('LPQ_FILE', `${file} cannot be read: ${(cause as Error).message}`, { cause });
  }
  const bytes = text.lastIndexOf(0x0a) + 1;
  if (bytes === 0) return undefined;
  const [first = '', ...rest] = text.toString('utf8', 0, bytes - 1).split('\n');
  const { run } = parse(headerSchema, first, file, 1);
  const blocks = new Map<BlockKey, JournalBlock>();
  const carried = new Map<string, string>();
  for (const [i, line] of rest.entries()) {
    const read = parse(z.union([blockSchema, carriedSchema]), line, file, i + 2);
    if ('block' in read) blocks.set(read.block, read);
    else for (const [name, sha256] of Object.entries(read.carried)) carried.set(name, sha256);
  }
  return { run, blocks, carried, bytes };
}

function parse<T extends z.ZodType>(schema: T, line: string, file: string, number: number): z.infer<T> {
  let value: unknown;
  let problem: string;
  try {
    value = JSON.parse(line);
    const parsed = schema.safeParse(value);
    if (parsed.success) return parsed.data;
    const [issue] = parsed.error.issues;
    problem = `/${issue?.path.map(String).join('/') ?? ''}: ${issue?.message}`;
  } catch (cause) {
    problem = (cause as Error).message;
  }
  throw new LpqError('LPQ_JOURNAL', `line ${number} of ${file} is malformed: ${problem}`, {
    got: line.slice(0, 100),
    hint: 'The file is damaged, or another version of lpq wrote it: discard the partial output with --restart.',
  });
}

/** An open journal. What append() has settled for survives a power failure. */
export class Journal {
  private constructor(
    private readonly file: string,
    private readonly handle: FileHandle,
    private at: number,
  ) {}

  /** Begins a journal anew, or goes on behind what was read of one. Throws LPQ_DISK_FULL, LPQ_OUTPUT_WRITE. */
  static async open(file: string, run: RunIdentity, before: JournalContents | undefined): Promise<Journal> {
    try {
      const handle = await open(file, before ? 'r+' : 'w');
      const journal = new Journal(file, handle, before?.bytes ?? 0);
      await handle.truncate(journal.at);
      if (!before) await journal.append([{ format: 'lpq-journal', version: 1, run }]);
      return journal;
    } catch (cause) {
      throw writeError(file, cause);
    }
  }

  /** Throws also LPQ_FILE where weights were lost while they were read: nothing made of them counts as finished. */
  async append(lines: readonly object[]): Promise<void> {
    requireWholeFiles();
    const bytes = Buffer.from(lines.map((line) => `${JSON.stringify(line)}\n`).join(''));
    try {
      for (let done = 0; done < bytes.length; )
        done += (await this.handle.write(bytes, done, bytes.length - done, this.at + done)).bytesWritten;
      await this.handle.sync();
    } catch (cause) {
      throw writeError(this.file, cause);
    }
    this.at += bytes.length;
  }

  close(): Promise<void> {
    return this.handle.close();
  }
}
