import type { Tensor, TimedCall } from '../../../native/binding.js';
import type { Program } from '../check/program.js';
import type { Kernel } from '../compile/compile.js';
import type { BoxMap } from '../compile/hopper.js';
import { evaluate } from '../interpret/evaluate.js';

/** A compiled program, and the file of its machine code. */
export interface Compiled {
  readonly program: Program;
  readonly kernel: Kernel;
  readonly cubin: string;
}

/** A tensor for each pointer, a number for each scalar; `workspace` where the kernel wants one. */
export interface DeviceArguments {
  readonly tensors: ReadonlyMap<string, Tensor>;
  readonly scalars: ReadonlyMap<string, number>;
  readonly workspace?: Tensor;
}

/** Kinds of the words of `arguments` (native/ops/launch_program.h). */
const [POINTER, NUMBER, BOXES] = [0, 1, 2];

/** The launch of a compiled program, as a runtime of a CUDA device enqueues or times it. */
export function launchCall({ program, kernel, cubin }: Compiled, given: DeviceArguments): TimedCall {
  const { tensors, scalars, workspace } = given;
  const written = (name: string): boolean => kernel.written.has(name);
  const pointers = program.parameters.filter(({ pointer }) => pointer).map(({ name }) => name);
  const inputs = pointers.filter((name) => !written(name));
  const outputs = pointers.filter(written);
  const order = [...inputs, ...outputs];
  const words = program.parameters.flatMap(({ name, pointer }) =>
    pointer ? [POINTER, order.indexOf(name)] : [NUMBER, scalars.get(name)!],
  );
  for (const map of kernel.maps) words.push(BOXES, order.indexOf(map.tensor.pointer!), ...boxWords(map, scalars));
  if (kernel.workspaceBytes > 0) words.push(POINTER, order.length);
  return {
    op: 'launch_program',
    inputs: inputs.map((name) => tensors.get(name)!),
    outputs: [...outputs.map((name) => tensors.get(name)!), ...(workspace ? [workspace] : [])],
    params: {
      cubin,
      kernel: kernel.name,
      blocks: program.grid.reduce((all, size) => all * evaluate(size, scalars), 1),
      threads: kernel.threads,
      shared: kernel.sharedBytes,
      arguments: words,
    },
  };
}

function boxWords({ tensor, box }: BoxMap, scalars: ReadonlyMap<string, number>): number[] {
  const [x, y = 1, z = 1] = tensor.shape.map((size) => evaluate(size, scalars)).toReversed() as [
    number,
    number?,
    number?,
  ];
  return [tensor.dtype.bits / 8, x, y, z, ...box];
}
