import { LpqError } from '../../core/error.js';
import { Misfit } from '../check/fold.js';
import type { Program } from '../check/program.js';
import type { Expr } from '../language/ast.js';
import { Block, type Machine } from './block.js';
import { evaluate } from './evaluate.js';
import { Memory } from './memory.js';

/** Arguments of a launch: bytes for each pointer, numbers for each scalar. `output`: its bytes count as never written. */
export type LaunchArguments = Readonly<Record<string, number | Uint8Array | { readonly output: Uint8Array }>>;

export interface Ran {
  /** The text of Print. */
  readonly printed: string;
  /** Bytes of each pointer that were never written; 0 for inputs. */
  readonly unwritten: Readonly<Record<string, number>>;
  /** Instructions that were executed, of all blocks. */
  readonly executed: number;
}

/** Instructions of all blocks after which a launch is given up. */
const MOST_INSTRUCTIONS = 1e9;
/** Blocks that a device launches at most. */
const MOST_BLOCKS = 2 ** 31 - 1;

/** A launch whose blocks the caller runs one by one. */
export class Launch {
  /** Blocks of the grid. */
  readonly blocks: number;
  private readonly machine: Machine;
  private readonly grid: readonly number[];
  private readonly scalars = new Map<string, number>();

  /** `most`: the most instructions to execute. Throws LPQ_TILUS for arguments that do not fit. */
  constructor(program: Program, args: LaunchArguments, most = MOST_INSTRUCTIONS) {
    const global = new Map<string, Memory>();
    for (const { name, pointer } of program.parameters) {
      const given = Object.hasOwn(args, name) ? args[name] : undefined;
      if (given === undefined || (typeof given === 'number') === pointer)
        throw new LpqError(
          'LPQ_TILUS',
          `${program.name} needs ${pointer ? 'bytes' : 'a number'} for its parameter ${name}`,
          {
            got: given === undefined ? 'nothing' : typeof given === 'number' ? 'a number' : 'bytes',
            hint: pointer ? `Give --in ${name}=FILE, or --out ${name}=FILE:BYTES.` : `Give --in ${name}=NUMBER.`,
          },
        );
      if (typeof given === 'number') this.scalars.set(name, given);
      else if (given instanceof Uint8Array) global.set(name, new Memory(name, given));
      else global.set(name, new Memory(name, given.output, false));
    }
    this.machine = { program, global, workspace: new Map(), epochs: { last: 0 }, printed: [], executed: 0, most };
    this.grid = program.grid.map((each) => this.size(each));
    this.blocks = this.grid.reduce((all, size) => all * size, 1);
    if (this.grid.some((size) => size < 1) || this.blocks > MOST_BLOCKS)
      throw new LpqError('LPQ_TILUS', `${program.name} is launched on a grid of ${this.grid.join(' x ')} blocks`, {
        expected: `1 to ${MOST_BLOCKS} blocks`,
      });
  }

  /** Runs a block to its end. Throws LPQ_TILUS. */
  block(number: number): void {
    new Block(this.machine, number, this.grid, this.scalars).run();
  }

  result(): Ran {
    const { printed, global, executed } = this.machine;
    const unwritten = Object.fromEntries([...global].map(([name, memory]) => [name, memory.unwritten]));
    return { printed: printed.join(''), unwritten, executed };
  }

  private size(expr: Expr): number {
    try {
      return evaluate(expr, this.scalars);
    } catch (misfit) {
      if (!(misfit instanceof Misfit)) throw misfit;
      throw new LpqError('LPQ_TILUS', `the grid of ${this.machine.program.name} has ${misfit.message}`, {
        got: misfit.got,
      });
    }
  }
}

/**
 * Runs a program exactly on the CPU: registers of each thread, packed bits of narrow types, copies that arrive when a thread waits for them.
 * Blocks run one after another. Writes to the bytes of `args`. Throws LPQ_TILUS with block, thread and instruction for undefined behaviour:
 * races, a missing Synchronize or CopyAsyncWaitGroup, reads of unwritten memory, addresses beyond memory.
 */
export function run(program: Program, args: LaunchArguments, most?: number): Ran {
  const launch = new Launch(program, args, most);
  for (let number = 0; number < launch.blocks; number++) launch.block(number);
  return launch.result();
}
