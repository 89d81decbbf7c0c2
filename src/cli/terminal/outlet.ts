import { fsyncSync, writeSync } from 'node:fs';
import { LpqError } from '../../core/error.js';
import { terminalText } from './terminal.js';

/** Of a stream that is a file: Node writes it with one write(2), and takes a part for the whole. */
interface FileStream extends NodeJS.WriteStream {
  readonly _type?: string;
  readonly fd: number;
}

/**
 * stdout or stderr. Every line goes through here: control characters of files are spelled out, colours of ours pass; and what could not
 * be written is remembered. A stream that failed takes nothing more, and nothing is thrown: the command ends its work.
 */
export class Outlet {
  private static readonly known = new WeakMap<NodeJS.WriteStream, Outlet>();
  private readonly stream: FileStream;
  private error: NodeJS.ErrnoException | undefined;
  private pending = 0;
  private idle: (() => void) | undefined;

  private constructor(
    stream: NodeJS.WriteStream,
    private readonly name: 'stdout' | 'stderr',
  ) {
    this.stream = stream as FileStream;
    stream.on('error', (error: NodeJS.ErrnoException) => this.fail(error));
  }

  /** The one of `stream`: it listens for errors as long as the process lives. */
  static of(stream: NodeJS.WriteStream, name: 'stdout' | 'stderr'): Outlet {
    let outlet = Outlet.known.get(stream);
    if (!outlet) {
      outlet = new Outlet(stream, name);
      Outlet.known.set(stream, outlet);
    }
    return outlet;
  }

  /** Whether something could not be written. */
  get failed(): boolean {
    return this.error !== undefined;
  }

  write(text: string): void {
    if (this.error || text === '') return;
    const safe = terminalText(text);
    if (this.stream._type === 'fs') this.writeFile(Buffer.from(safe));
    else {
      this.pending++;
      this.stream.write(safe, (error) => {
        if (error) this.fail(error);
        this.pending--;
        if (this.pending === 0) this.idle?.();
      });
    }
  }

  /** Settles when everything is written, or is known not to be: then with the error. */
  async settle(): Promise<LpqError | undefined> {
    if (this.pending > 0 && !this.error)
      await new Promise<void>((resolve) => {
        this.idle = resolve;
      });
    if (this.stream._type === 'fs' && !this.error) this.flush();
    return this.error && undelivered(this.name, this.error);
  }

  private writeFile(bytes: Buffer): void {
    try {
      for (let at = 0; at < bytes.length; ) at += writeSync(this.stream.fd, bytes, at);
    } catch (error) {
      this.fail(error as NodeJS.ErrnoException);
    }
  }

  // A file system of the network may tell only now that it has no room.
  private flush(): void {
    try {
      fsyncSync(this.stream.fd);
    } catch (error) {
      const { code = '' } = error as NodeJS.ErrnoException;
      if (['EIO', 'ENOSPC', 'EDQUOT'].includes(code)) this.fail(error as NodeJS.ErrnoException);
    }
  }

  private fail(error: NodeJS.ErrnoException): void {
    this.error ??= error;
    this.idle?.();
  }
}

function undelivered(name: string, cause: NodeJS.ErrnoException): LpqError {
  const what = name === 'stdout' ? 'the result' : "the command's messages";
  const { code } = cause;
  if (code === 'EPIPE' || code === 'ECONNRESET')
    return new LpqError('LPQ_PIPE', `${name} was closed before ${what} was written`, {
      cause,
      hint: 'Keep its reader open until lpq ends; the named outputs are complete.',
    });
  if (code === 'ENOSPC' || code === 'EDQUOT')
    return new LpqError('LPQ_DISK_FULL', `${what} could not be written to ${name}: the disk is full`, {
      cause,
      hint: 'Free some space, or write it to another disk.',
    });
  return new LpqError('LPQ_OUTPUT_WRITE', `${what} could not be written to ${name}: ${cause.message}`, { cause });
}
