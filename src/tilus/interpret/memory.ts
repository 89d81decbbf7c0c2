import { LpqError } from '../../core/error.js';
import { type Actor, type At, fault } from './fault.js';

/** Bytes of one tensor; each takes 22 here. */
const LARGEST = 2 ** 27;

const UNWRITTEN = 0;
const WRITTEN = 1;
const COPYING = 2;
const SEVERAL = -2;

/** Facts that all accesses of an instruction share. */
export interface Access extends Actor {
  /** Of the block in the grid. */
  readonly blockNumber: number;
  /** Threads of a block meet between epochs; each block begins a new one. */
  readonly epoch: number;
  readonly threads: number;
}

/**
 * Bytes of memory, with the last writer and readers of each. Between two Synchronize, no thread may write a byte that another thread reads or
 * writes; different blocks never may. A copy in flight is a write that arrives later.
 */
export class Memory {
  readonly bytes: Uint8Array;
  private readonly state: Uint8Array;
  private readonly writer: Int32Array;
  private readonly writeEpoch: Int32Array;
  private readonly reader: Int32Array;
  private readonly readEpoch: Int32Array;
  /** The instruction that wrote, as an index into `acts`. */
  private readonly wrote: Int32Array;
  private readonly acts: At[] = [];
  private lastAct: At | undefined;

  constructor(
    readonly name: string,
    content: number | Uint8Array,
    written = typeof content !== 'number',
  ) {
    const size = typeof content === 'number' ? content : content.length;
    if (size > LARGEST)
      throw new LpqError('LPQ_TILUS', `${name} is too large for the interpreter`, {
        got: `${size} bytes`,
        expected: `at most ${LARGEST}`,
        hint: 'It records who wrote each byte: use a smaller matrix.',
      });
    this.bytes = typeof content === 'number' ? new Uint8Array(size) : content;
    this.state = new Uint8Array(size).fill(written ? WRITTEN : UNWRITTEN);
    [this.writer, this.writeEpoch, this.reader, this.readEpoch, this.wrote] = Array.from({ length: 5 }, () =>
      new Int32Array(size).fill(-1),
    ) as [Int32Array, Int32Array, Int32Array, Int32Array, Int32Array];
  }

  /** The number of bytes that were never written. */
  get unwritten(): number {
    return this.state.reduce((sum, state) => sum + (state === WRITTEN ? 0 : 1), 0);
  }

  /** Records that `thread` reads `count` bytes from `at` on. */
  read(access: Access, thread: number, at: number, count: number): void {
    this.inside(access, thread, at, count, 'reads');
    const who = access.blockNumber * access.threads + thread;
    for (let byte = at; byte < at + count; byte++) {
      if (this.state[byte] !== WRITTEN) this.unreadable(access, thread, byte);
      const writer = this.writer[byte]!;
      if (writer >= 0 && writer !== who)
        this.order(access, thread, byte, writer, this.writeEpoch[byte]!, 'reads', 'wrote');
      if (this.readEpoch[byte] !== access.epoch) {
        // Readers of other blocks stay known: who writes later races with them.
        const other = this.reader[byte]!;
        const foreign = other === SEVERAL || (other >= 0 && Math.floor(other / access.threads) !== access.blockNumber);
        this.reader[byte] = foreign ? SEVERAL : who;
        this.readEpoch[byte] = access.epoch;
      } else if (this.reader[byte] !== who) this.reader[byte] = SEVERAL;
    }
  }

  /** Records that `thread` writes `count` bytes from `at` on. */
  write(access: Access, thread: number, at: number, count: number): void {
    this.claim(access, thread, at, count, WRITTEN);
  }

  /** The same for a copy that arrives when `thread` waits for it. */
  begin(access: Access, thread: number, at: number, count: number): void {
    this.claim(access, thread, at, count, COPYING);
  }

  /** Marks a copy as arrived. */
  land(access: Access, at: number, from: Uint8Array): void {
    this.bytes.set(from, at);
    this.state.fill(WRITTEN, at, at + from.length);
    this.writeEpoch.fill(access.epoch, at, at + from.length);
  }

  private claim(access: Access, thread: number, at: number, count: number, state: number): void {
    this.inside(access, thread, at, count, 'writes');
    const who = access.blockNumber * access.threads + thread;
    const act = this.act(access);
    for (let byte = at; byte < at + count; byte++) {
      if (this.state[byte] === COPYING)
        fault(
          access,
          thread,
          `writes byte ${byte} of ${this.name} while ${this.writerOf(byte)} still copies to it`,
          'CopyAsyncWaitGroup first.',
        );
      const writer = this.writer[byte]!;
      if (writer >= 0 && writer !== who)
        this.order(access, thread, byte, writer, this.writeEpoch[byte]!, 'writes', 'wrote');
      const reader = this.reader[byte]!;
      if (reader !== -1 && reader !== who) this.orderReader(access, thread, byte, reader);
      this.state[byte] = state;
      this.writer[byte] = who;
      this.writeEpoch[byte] = access.epoch;
      this.wrote[byte] = act;
    }
  }

  private orderReader(access: Access, thread: number, byte: number, reader: number): void {
    const same = this.readEpoch[byte] === access.epoch;
    const elsewhere = reader >= 0 && Math.floor(reader / access.threads) !== access.blockNumber;
    if (!same && !elsewhere) return;
    const who = reader === SEVERAL ? 'others read' : `thread ${reader % access.threads} reads`;
    fault(
      access,
      thread,
      `writes byte ${byte} of ${this.name}, which ${elsewhere ? 'another block reads' : `${who} with no Synchronize in between`}`,
      elsewhere ? 'Blocks have no order: write to another place.' : 'Synchronize before you overwrite it.',
    );
  }

  private order(
    access: Access,
    thread: number,
    byte: number,
    writer: number,
    epoch: number,
    does: string,
    did: string,
  ): void {
    const block = Math.floor(writer / access.threads);
    if (block !== access.blockNumber)
      fault(
        access,
        thread,
        `${does} byte ${byte} of ${this.name}, which block number ${block} ${did} at ${this.writerOf(byte)}`,
        'Blocks have no order.',
      );
    if (epoch === access.epoch)
      fault(
        access,
        thread,
        `${does} byte ${byte} of ${this.name}, which thread ${writer % access.threads} ${did} at ${this.writerOf(byte)} with no Synchronize in between`,
        'Synchronize between the two.',
      );
  }

  private unreadable(access: Access, thread: number, byte: number): never {
    if (this.state[byte] === COPYING)
      fault(
        access,
        thread,
        `reads byte ${byte} of ${this.name} before the copy of ${this.writerOf(byte)} has arrived`,
        'CopyAsyncWaitGroup, then Synchronize.',
      );
    return fault(access, thread, `reads byte ${byte} of ${this.name}, which was never written`);
  }

  private inside(access: Access, thread: number, at: number, count: number, does: string): void {
    if (at < 0 || at + count > this.bytes.length)
      fault(access, thread, `${does} bytes ${at} to ${at + count - 1} of ${this.name}, which has ${this.bytes.length}`);
  }

  private act(at: At): number {
    if (this.lastAct?.line !== at.line || this.lastAct.text !== at.text) {
      this.lastAct = { line: at.line, text: at.text };
      this.acts.push(this.lastAct);
    }
    return this.acts.length - 1;
  }
  private writerOf(byte: number): string {
    const act = this.acts[this.wrote[byte]!];
    return act ? `line ${act.line} (${act.text})` : 'the host';
  }
}
