import { Misfit } from '../check/fold.js';
import type { Instruction, MemoryTensor, Node, Program, RegisterTensor } from '../check/program.js';
import { elementsOf } from '../check/shared.js';
import type { Expr } from '../language/ast.js';
import { computed } from './compute.js';
import { evaluate } from './evaluate.js';
import { fault } from './fault.js';
import { Hopper, type Surroundings } from './hopper.js';
import { type Access, Memory } from './memory.js';
import { printMemory, printTensor } from './print.js';
import type { Registers } from './registers.js';
import { type Copy, copyTile, loadTile, type Mapped, placed, storeTile } from './tiles.js';

/** Turns of a loop after which it counts as endless. */
const LONGEST = 10_000_000;

/** State that the blocks of a launch share. */
export interface Machine {
  readonly program: Program;
  readonly global: ReadonlyMap<string, Memory>;
  readonly workspace: Map<number, Memory>;
  readonly epochs: { last: number };
  readonly printed: string[];
  executed: number;
  /** The number of instructions after which the launch fails. */
  readonly most: number;
}

/** A block of a launch while it runs. */
export class Block {
  private readonly scalars: Map<string, number>;
  private readonly registers = new Map<number, Registers>();
  private readonly mapped = new Map<number, Mapped>();
  private readonly shared: Memory;
  private readonly indices: number[];
  private readonly hopper = new Hopper();
  private open: Copy[] = [];
  private readonly groups: Copy[][] = [];
  private epoch: number;

  constructor(
    private readonly machine: Machine,
    private readonly number: number,
    private readonly grid: readonly number[],
    scalars: ReadonlyMap<string, number>,
  ) {
    this.scalars = new Map(scalars);
    this.shared = new Memory('shared memory', machine.program.shared.bytes);
    this.epoch = ++machine.epochs.last;
    this.indices = [];
    for (let rest = number, dim = grid.length - 1; dim >= 0; dim--) {
      this.indices[dim] = rest % grid[dim]!;
      rest = Math.floor(rest / grid[dim]!);
    }
  }

  run(): void {
    this.statements(this.machine.program.body);
    const last = { line: 0, text: 'the end', block: this.indices };
    if (this.open.length > 0 || this.hopper.unfinished || this.groups.some((group) => group.length > 0))
      fault(last, undefined, 'ends while copies or products are in flight', 'Wait for them before the end.');
  }

  private value(expr: Expr, node: Node): number {
    try {
      return evaluate(expr, this.scalars);
    } catch (misfit) {
      if (!(misfit instanceof Misfit)) throw misfit;
      return fault({ ...node, block: this.indices }, undefined, `computes ${misfit.got}: ${misfit.message}`);
    }
  }

  /** Returns whether the block continues after these. */
  private statements(nodes: readonly Node[]): boolean {
    for (const node of nodes) {
      switch (node.op) {
        case 'assign':
          this.scalars.set(node.name, this.value(node.value, node));
          break;
        case 'if':
          if (!this.statements(this.value(node.condition, node) !== 0 ? node.body : node.otherwise)) return false;
          break;
        case 'for': {
          const end = this.value(node.end, node);
          for (let i = this.value(node.start, node); i < end; i += node.step) {
            this.scalars.set(node.variable, i);
            if (!this.statements(node.body)) return false;
          }
          break;
        }
        case 'while':
          for (let turns = 0; this.value(node.condition, node) !== 0; turns++) {
            if (turns === LONGEST) fault({ ...node, block: this.indices }, undefined, `repeats ${LONGEST} times`);
            if (!this.statements(node.body)) return false;
          }
          break;
        case 'Exit':
          return false;
        default:
          if (++this.machine.executed > this.machine.most)
            fault(
              { ...node, block: this.indices },
              undefined,
              `has executed ${this.machine.most} instructions without reaching its end`,
            );
          this.execute(node);
      }
    }
    return true;
  }

  private execute(node: Instruction): void {
    switch (node.op) {
      case 'BlockIndices':
        if (node.outputs.length > this.grid.length)
          fault(this.access(node), undefined, `has ${this.grid.length} indices, not ${node.outputs.length}`);
        for (const [dim, name] of node.outputs.entries()) this.scalars.set(name, this.indices[dim]!);
        return;
      case 'AllocateShared':
      case 'AllocateGlobal':
      case 'ViewGlobal':
        this.mapped.set(node.out.id, this.map(node.out, node));
        return;
      case 'Synchronize':
        this.epoch = ++this.machine.epochs.last;
        return;
      case 'Print':
        this.print(node);
        return;
      case 'CopyAsync':
      case 'CopyAsyncCommitGroup':
      case 'CopyAsyncWaitGroup':
        this.copy(node);
        return;
      case 'LoadGlobal':
      case 'LoadShared': {
        const place = placed(node.at, (expr) => this.value(expr, node));
        this.registers.set(node.out.id, loadTile(this.access(node), this.mapped.get(node.from.id)!, place, node.out));
        return;
      }
      case 'StoreGlobal':
      case 'StoreShared': {
        const place = placed(node.at, (expr) => this.value(expr, node));
        storeTile(this.access(node), this.mapped.get(node.to.id)!, place, node.value, this.held(node.value, node));
        return;
      }
      case 'Exit':
        return;
      case 'AllocateBarrier':
        this.mapped.set(node.out.id, this.map(node.out, node));
        this.hopper.execute(node, this.around(node));
        return;
      case 'CopyTensor':
      case 'BarrierWait':
      case 'WarpgroupDot':
      case 'WarpgroupWait':
        this.hopper.execute(node, this.around(node));
        return;
      default:
        this.compute(node);
    }
  }

  private compute(node: Instruction): void {
    if (!('out' in node) || node.out.scope !== 'register') return;
    const registers = computed(node, {
      number: (expr) => this.value(expr, node),
      held: (tensor) => this.held(tensor, node),
      fault: (thread, what) => fault(this.access(node), thread, what),
    });
    if (registers) this.registers.set(node.out.id, registers);
    else this.registers.delete(node.out.id);
  }

  private copy(node: Instruction): void {
    if (node.op === 'CopyAsync') {
      const number = (expr: Expr): number => this.value(expr, node);
      const [to, from] = [this.mapped.get(node.to.id)!, this.mapped.get(node.from.id)!];
      this.open.push(
        ...copyTile(this.access(node), to, placed(node.at, number), from, placed(node.source, number), node.shape),
      );
    } else if (node.op === 'CopyAsyncCommitGroup') this.groups.push(this.open.splice(0));
    else if (node.op === 'CopyAsyncWaitGroup')
      for (const group of this.groups.splice(0, Math.max(0, this.groups.length - node.groups)))
        for (const copy of group) copy.memory.land(this.access(node), copy.byte, copy.bytes);
  }

  private around(node: Node): Surroundings {
    return {
      access: this.access(node),
      number: (expr) => this.value(expr, node),
      mapped: (id) => this.mapped.get(id)!,
      // Products that follow one another add up in their order.
      held: (tensor) => this.held(tensor, node, node.op === 'WarpgroupDot' && tensor === node.c),
      set: (id, registers) => this.registers.set(id, registers),
    };
  }

  private held(tensor: RegisterTensor, node: Node, early = false): Registers {
    if (!early && this.hopper.pending(tensor.id))
      fault(
        { ...node, block: this.indices },
        0,
        `reads ${tensor.name} while products add to it`,
        'WarpgroupWait first.',
      );
    return (
      this.registers.get(tensor.id) ??
      fault({ ...node, block: this.indices }, 0, `reads ${tensor.name}, whose registers were never written`)
    );
  }

  private map(tensor: MemoryTensor, node: Node): Mapped {
    const number = (expr: Expr): number => this.value(expr, node);
    const shape = tensor.shape.map(number);
    const modes = tensor.modes.map((list) =>
      list.map(({ size, stride }) => ({ size: size ?? Number.POSITIVE_INFINITY, stride: number(stride) })),
    );
    if (tensor.scope === 'shared') {
      const { byte } = this.machine.program.shared.places.find((each) => each.tensor === tensor)!;
      return { tensor, memory: this.shared, byte, shape, modes };
    }
    let memory =
      tensor.pointer === undefined ? this.machine.workspace.get(tensor.id) : this.machine.global.get(tensor.pointer);
    if (!memory) {
      memory = new Memory(tensor.name, Math.ceil((elementsOf(tensor) * tensor.dtype.bits) / 8));
      this.machine.workspace.set(tensor.id, memory);
    }
    return { tensor, memory, byte: 0, shape, modes };
  }

  private print(node: Instruction & { op: 'Print' }): void {
    const { tensor } = node;
    const text =
      tensor.scope === 'register'
        ? printTensor(tensor, this.held(tensor, node))
        : printMemory(this.mapped.get(tensor.id)!);
    this.machine.printed.push(text);
  }

  private access(node: Node): Access {
    return {
      line: node.line,
      text: node.text,
      block: this.indices,
      blockNumber: this.number,
      epoch: this.epoch,
      threads: this.machine.program.threads,
    };
  }
}
