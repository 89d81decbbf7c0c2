import { LpqError } from '../../core/error.js';
import type { Instruction, MemoryTensor, Node, RegisterTensor } from '../check/program.js';
import { elementsOf } from '../check/shared.js';
import { encode } from '../types.js';
import { writeMove } from './access.js';
import { writeArithmetic, writeCast, writeInit, writeNegate, writeView } from './compute.js';
import { writeCopy } from './copy.js';
import { writeDot } from './dot.js';
import { describe } from './header.js';
import { writeHopper } from './hopper.js';
import { writeLdmatrix } from './ldmatrix.js';
import { writeOrderedCast } from './ordered-cast.js';
import { cpp, cppName } from './text.js';
import type { Unit } from './unit.js';

/** Writes statements of a program, one after another. */
export class Emitter {
  constructor(
    private readonly unit: Unit,
    /** Tensors in memory that loads or stores use. */
    private readonly used: ReadonlySet<number>,
    /** Whether threads store operands of warpgroup products. */
    private readonly warpgroups: boolean,
  ) {}

  statements(nodes: readonly Node[]): void {
    for (const node of nodes) this.statement(node);
  }

  private statement(node: Node): void {
    const { writer } = this.unit;
    switch (node.op) {
      case 'assign':
        writer.line(`${node.fresh ? 'int ' : ''}${cppName(node.name)} = ${cpp(node.value)};`);
        return;
      case 'if':
        writer.block(`if (${cpp(node.condition)})`, () =>
          this.unit.ranges.within(node.condition, () => this.statements(node.body)),
        );
        if (node.otherwise.length > 0) writer.block('else', () => this.statements(node.otherwise));
        return;
      case 'while':
        writer.block(`while (${cpp(node.condition)})`, () => this.statements(node.body));
        return;
      case 'for': {
        const name = cppName(node.variable);
        const step = node.step === 1 ? `++${name}` : `${name} += ${node.step}`;
        writer.block(`for (int ${name} = ${cpp(node.start)}; ${name} < ${cpp(node.end, 5)}; ${step})`, () =>
          this.statements(node.body),
        );
        return;
      }
      default: {
        const why = this.instruction(node);
        if (why !== undefined)
          throw new LpqError('LPQ_TILUS', `line ${node.line}, ${node.text}: ${why}`, {
            hint: 'The interpreter runs it.',
          });
      }
    }
  }

  private instruction(node: Instruction): string | undefined {
    const { unit } = this;
    switch (node.op) {
      case 'BlockIndices':
        this.indices(node.outputs);
        return undefined;
      case 'AllocateShared':
        return undefined;
      case 'AllocateGlobal':
      case 'ViewGlobal':
        if (this.used.has(node.out.id)) this.global(node.out);
        return undefined;
      case 'LoadGlobal':
      case 'LoadShared':
        this.declare(node.out, node.text);
        if (node.op === 'LoadShared' && writeLdmatrix(unit, node.from, node.at, node.out)) return undefined;
        return writeMove(unit, node, node.from, node.at, node.out);
      case 'StoreGlobal':
      case 'StoreShared':
        unit.writer.line(`// ${node.text}`);
        return writeMove(unit, node, node.to, node.at, node.value);
      case 'CopyAsync':
        unit.writer.line(`// ${node.text}`);
        return writeCopy(unit, node);
      case 'CopyAsyncCommitGroup':
        unit.header('cp_async');
        unit.writer.line('cp_async_commit();');
        return undefined;
      case 'CopyAsyncWaitGroup':
        unit.header('cp_async');
        unit.writer.line(`cp_async_wait<${node.groups}>();`);
        return undefined;
      case 'Synchronize':
        // What threads stored is seen by wgmma.
        if (this.warpgroups) {
          unit.header('tma');
          unit.writer.line('fence_proxy_async_shared();');
        }
        unit.writer.line('__syncthreads();');
        return undefined;
      case 'Exit':
        unit.writer.line('return;');
        return undefined;
      case 'Print':
        return 'Print works in the interpreter only';
      default:
        return this.compute(node);
    }
  }

  private compute(node: Instruction): string | undefined {
    const { unit } = this;
    switch (node.op) {
      case 'AllocateRegister': {
        const { init } = node;
        if (init && init.kind !== 'number' && node.out.dtype.bits < 32)
          return 'registers of less than 32 bits begin with a constant';
        const bits = init?.kind === 'number' ? encode(node.out.dtype, init.value) : 0;
        writeInit(unit, { ...node, text: describe(node.out) }, init && cpp(init), bits);
        return undefined;
      }
      case 'Cast':
        if (node.order)
          return writeOrderedCast(unit, { ...node, order: node.order, text: `${node.text}    ${describe(node.out)}` });
        return writeCast(unit, { ...node, text: `${node.text}    ${describe(node.out)}` });
      case 'View':
        writeView(unit, { ...node, text: `${node.text}    ${describe(node.out)}` });
        return undefined;
      case 'Neg':
        writeNegate(unit, node);
        return undefined;
      case 'Dot':
        writeDot(unit, node);
        return undefined;
      case 'AllocateBarrier':
      case 'CopyTensor':
      case 'BarrierWait':
      case 'WarpgroupDot':
      case 'WarpgroupWait':
        writeHopper(unit, node);
        return undefined;
      case 'Add':
      case 'Sub':
      case 'Mul':
      case 'Div':
      case 'Mod':
        return writeArithmetic(unit, node);
      default:
        return `${node.op} has no code`;
    }
  }

  private declare(tensor: RegisterTensor, text: string): void {
    this.unit.writer.line('');
    this.unit.declare(tensor, `${text}    ${describe(tensor)}`);
  }

  private indices(outputs: readonly string[]): void {
    const { grid } = this.unit.program;
    const { writer } = this.unit;
    const block = 'static_cast<int>(blockIdx.x)';
    for (const [dim, name] of outputs.entries()) {
      const below = grid.slice(dim + 1).filter((size) => size.kind !== 'number' || size.value !== 1);
      const all = below.map((size) => cpp(size, 7)).join(' * ');
      const rest = below.length === 0 ? block : `${block} / ${below.length === 1 ? all : `(${all})`}`;
      writer.line(`int ${cppName(name)} = ${rest}${dim === 0 ? '' : ` % ${cpp(grid[dim]!, 7)}`};`);
    }
  }

  private global(tensor: MemoryTensor): void {
    const { unit } = this;
    unit.writer.line(`// ${describe(tensor)}`);
    if (tensor.pointer !== undefined) {
      unit.writer.line(`auto* const ${unit.name(tensor)} = ${cppName(tensor.pointer)};`);
      return;
    }
    unit.writer.line(`unsigned char* const ${unit.name(tensor)} = workspace + ${unit.workspaceBytes};`);
    unit.workspaceBytes += Math.ceil((elementsOf(tensor) * tensor.dtype.bits) / 8 / 256) * 256;
  }
}
