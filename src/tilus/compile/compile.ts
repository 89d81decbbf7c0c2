import type { Program } from '../check/program.js';
import { Emitter } from './emitter.js';
import { headerOf } from './header.js';
import type { BoxMap } from './hopper.js';
import { visit } from './ranges.js';
import { cppName } from './text.js';
import { Unit } from './unit.js';

/** A program as CUDA C++. */
export interface Kernel {
  readonly name: string;
  readonly text: string;
  readonly threads: number;
  /** Bytes of dynamic shared memory. */
  readonly sharedBytes: number;
  /** Bytes of the workspace, to which the last parameter points; 0: no such parameter. */
  readonly workspaceBytes: number;
  /** The pointers at which it stores. */
  readonly written: ReadonlySet<string>;
  /** Tensor maps that follow the program's parameters. */
  readonly maps: readonly BoxMap[];
  /** The architecture for nvcc: a number of --arch, with the `a` that instructions of sm_90 need. */
  readonly features: '' | 'a';
  /** The selected instructions, and how often each is written. */
  readonly selected: ReadonlyMap<string, number>;
}

/**
 * Compiles a checked program to one kernel over native/cuda/ptx: blockIdx.x counts the blocks of the grid, the last dimension fastest; each
 * pointer points to bytes, aligned to 16. `name` is the name of the kernel and of its namespace. Throws LPQ_TILUS, naming line and
 * instruction, for programs that only the interpreter runs.
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
    written: stored,
    maps: unit.maps,
    features: unit.hopper ? 'a' : '',
    selected: unit.selected,
  };
}
