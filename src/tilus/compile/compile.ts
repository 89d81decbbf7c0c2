import { LpqError } from '../../core/error.js';
import type { Instruction, MemoryTensor, Node, Program, RegisterTensor, Tensor } from '../check/program.js';
import { elementsOf } from '../check/shared.js';
import { printExpr } from '../language/expressions.js';
import { encode } from '../types.js';
import { writeMove } from './access.js';
import { algebra } from './algebra.js';
import { writeArithmetic, writeCast, writeInit, writeNegate, writeView } from './compute.js';
import { writeCopy } from './copy.js';
import { writeDot } from './dot.js';
import { type BoxMap, writeHopper } from './hopper.js';
import { writeLdmatrix } from './ldmatrix.js';
import { visit } from './ranges.js';
import { cpp, cppName } from './text.js';
import { Unit } from './unit.js';

/** A program as CUDA C++. */
export interface Kernel {
  readonly name: string;
  readonly text: string;
  readonly threads: number;
  /** Of dynamic shared memory. */
  readonly sharedBytes: number;
  /** Of the workspace that the last parameter points to; 0: there is no such parameter. */
  readonly workspaceBytes: number;
  /** Tensor maps that follow the program's parameters. */
  readonly maps: readonly BoxMap[];
  /** What nvcc compiles it for: a number of --arch, with the `a` that instructions of sm_90 need. */
  readonly features: '' | 'a';
  /** Instructions that were selected and how often they are written. */
  readonly selected: ReadonlyMap<string, number>;
}

/**
 * Compiles a checked program to one kernel over native/cuda/ptx: blockIdx.x counts the blocks of the grid, the last dimension fastest; each
 * pointer is one of bytes, aligned to 16. `name`: of the kernel, and of the namespace that holds it. Throws LPQ_TILUS, naming line and instruction, for what the interpreter alone runs.
 */
export function compile(program: Program, name = program.name): Kernel {
  const unit = new Unit(program);
  unit.header('shared_memory');
  const stored = new Set<string>();
  const used = new Set<number>();
  visit(program.body, (node) => {
    if ('to' in node) used.add(node.to.id);
    if ('from' in node && node.op !== 'CopyTensor') used.add(node.from.id);
    if ('to' in node && node.to.pointer !== undefined) stored.add(node.to.pointer);
  });
  const ops = new Set<string>();
  visit(program.body, (node) => ops.add(node.op));
  new Emitter(unit, used, ops.has('WarpgroupDot') && ops.has('StoreShared')).statements(program.body);
  const parameters = program.parameters.map(({ name, pointer }) =>
    pointer ? `${stored.has(name) ? '' : 'const '}unsigned char* ${cppName(name)}` : `int ${cppName(name)}`,
  );
  for (const { name: map } of unit.maps) parameters.push(`const __grid_constant__ TensorMap ${map}`);
  if (unit.workspaceBytes > 0) parameters.push('unsigned char* workspace');
  const body = unit.writer.toString();
  const lines = [
    ...headerOf(unit),
    '#include <cstdint>\n#include <cstring>\n',
    ...[...unit.headers].sort().map((name) => `#include "cuda/ptx/${name}.cuh"`),
    `\nnamespace lpq::cuda::${name}_kernel {\n`,
    unit.preamble(),
    `extern "C" __global__ __launch_bounds__(${program.threads}) void ${name}(${parameters.join(', ')}) {`,
    '  const int thread = static_cast<int>(threadIdx.x);',
    ...(body.includes('shared + ') ? ['  const uint32_t shared = shared_address(dynamic_shared());'] : []),
    body.trimEnd(),
    `}\n\n}  // namespace lpq::cuda::${name}_kernel`,
  ];
  return {
    name,
    text: `${lines.join('\n')}\n`,
    threads: program.threads,
    sharedBytes: program.shared.bytes,
    workspaceBytes: unit.workspaceBytes,
    maps: unit.maps,
    features: unit.hopper ? 'a' : '',
    selected: unit.selected,
  };
}

function headerOf({ program }: Unit): string[] {
  const constants = [...program.constants].filter(([, value]) => !value.startsWith('layout'));
  return [
    `// ${program.name}<${program.grid.map((each) => printExpr(each)).join(', ')}>, ${program.threads} threads a block, written by lpq tilus compile.`,
    ...wrapped(constants.map(([name, value]) => `${name} = ${value}`)),
    ...program.shared.places.map(({ tensor, byte }) => `// shared memory, byte ${byte}: ${describe(tensor)}`),
  ];
}

/** Items between commas in comments of at most 110 columns. */
function wrapped(items: readonly string[]): string[] {
  const lines: string[] = [];
  for (const item of items) {
    const longer = `${lines.at(-1) ?? '//'} ${item},`;
    if (lines.length > 0 && longer.length <= 110) lines[lines.length - 1] = longer;
    else lines.push(`// ${item},`);
  }
  return lines.map((line, i) => (i === lines.length - 1 ? line.replace(/,$/, '') : line));
}

/** f16[16, 8]: column_local(2, 2).spatial(8, 4).local(1, 2). */
export function describe(tensor: Tensor): string {
  if (tensor.scope === 'register')
    return `${tensor.name}: ${tensor.dtype.name}[${tensor.layout.shape.join(', ')}], ${algebra(tensor.layout)}`;
  const shape = tensor.shape.map((each) => printExpr(each)).join(', ');
  return `${tensor.name}: ${tensor.dtype.name}[${shape}]${tensor.swizzle ? ', swizzled' : ''}`;
}

class Emitter {
  constructor(
    private readonly unit: Unit,
    /** Tensors in memory that something is loaded from or stored to. */
    private readonly used: ReadonlySet<number>,
    /** Whether threads store what warpgroups multiply. */
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
        return 'Print is of the interpreter';
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
      writer.line(`const int ${cppName(name)} = ${rest}${dim === 0 ? '' : ` % ${cpp(grid[dim]!, 7)}`};`);
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
