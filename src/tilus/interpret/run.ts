import { LpqError } from '../../core/error.js';
import type { Program } from '../check/program.js';
import { Block } from './block.js';
import { evaluate } from './evaluate.js';
import { fault } from './fault.js';
import { Memory } from './memory.js';

/** What a launch is given: bytes for each pointer, numbers for each scalar. `output`: nothing is in it that could be read. */
export type LaunchArguments = Readonly<Record<string, number | Uint8Array | { readonly output: Uint8Array }>>;

export interface Ran {
  /** What Print wrote. */
  readonly printed: string;
  /** Bytes of each pointer that nothing was written to; 0 for inputs. */
  readonly unwritten: Readonly<Record<string, number>>;
  /** Instructions that were executed, of all blocks. */
  readonly executed: number;
}

/**
 * Runs a program on the CPU, exactly: registers by thread, bits of low types as they lie, copies that land when they are waited for. Blocks
 * run one after another. Writes to the bytes of `args`. Throws LPQ_TILUS with block, thread and instruction for what the machine leaves
 * undefined: races, a missing Synchronize or CopyAsyncWaitGroup, reads of what was never written, addresses beyond memory.
 */
export function run(program: Program, args: LaunchArguments): Ran {
  const global = new Map<string, Memory>();
  const scalars = new Map<string, number>();
  for (const { name, pointer } of program.parameters) {
    const given = args[name];
    if (given === undefined || (typeof given === 'number') === pointer)
      throw new LpqError('LPQ_TILUS', `${program.name} is launched without a fitting ${name}`, {
        got: typeof given,
        expected: pointer ? 'bytes' : 'a number',
      });
    if (typeof given === 'number') scalars.set(name, given);
    else if (given instanceof Uint8Array) global.set(name, new Memory(name, given));
    else global.set(name, new Memory(name, given.output, false));
  }
  const launch = { line: 0, text: `grid of ${program.name}`, block: [0] };
  const grid = program.grid.map((each) => evaluate(each, scalars));
  if (grid.some((size) => size < 1)) fault(launch, undefined, `belongs to a grid of ${grid.join(' x ')} blocks`);
  const machine = {
    program,
    global,
    workspace: new Map<number, Memory>(),
    epochs: { last: 0 },
    printed: [] as string[],
    executed: 0,
  };
  const blocks = grid.reduce((all, size) => all * size, 1);
  for (let number = 0; number < blocks; number++) new Block(machine, number, grid, scalars).run();
  return {
    printed: machine.printed.join(''),
    unwritten: Object.fromEntries([...global].map(([name, memory]) => [name, memory.unwritten])),
    executed: machine.executed,
  };
}
