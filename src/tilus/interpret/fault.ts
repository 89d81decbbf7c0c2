import { LpqError } from '../../core/error.js';

/** An instruction of a program, for reports. */
export interface At {
  readonly line: number;
  readonly text: string;
}

/** An act: an instruction, in a thread of a block. */
export interface Actor extends At {
  /** As BlockIndices gives them. */
  readonly block: readonly number[];
}

/** Reports undefined behaviour: throws LPQ_TILUS with block, thread and instruction. */
export function fault(actor: Actor, thread: number | undefined, what: string, hint?: string): never {
  const who = `block (${actor.block.join(', ')})${thread === undefined ? '' : `, thread ${thread}`}`;
  throw new LpqError(
    'LPQ_TILUS',
    `line ${actor.line}, ${actor.text}: ${who} ${what}`,
    hint === undefined ? {} : { hint },
  );
}
