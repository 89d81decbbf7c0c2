import { localCount } from '../../layout/layout.js';
import type { HopperAction, MemoryTensor, Node } from '../check/program.js';
import { sharedByte } from './access.js';
import { cpp, sum, times } from './text.js';
import { strideOf } from './tile.js';
import type { Unit } from './unit.js';

/** A tensor map that the launch gives a kernel: boxes of a tensor in global memory, swizzled in rows of 128 bytes. */
export interface BoxMap {
  /** The kernel's parameter, a CUtensorMap by value. */
  readonly name: string;
  readonly tensor: MemoryTensor;
  /** Elements of a box along three dimensions, innermost first. */
  readonly box: readonly [number, number, number];
}

type Of<O extends HopperAction['op']> = Node & HopperAction & { readonly op: O };

/** Writes an instruction of sm_90. */
export function writeHopper(unit: Unit, node: Node & HopperAction): void {
  unit.hopper = true;
  unit.header('shared_memory');
  switch (node.op) {
    case 'AllocateBarrier':
      allocate(unit, node);
      return;
    case 'CopyTensor':
      copy(unit, node);
      return;
    case 'BarrierWait':
      unit.header('mbarrier');
      unit.writer.line(`mbarrier_wait_parity(${barrierText(unit, node)}, ${cpp(node.parity)});`);
      return;
    case 'WarpgroupDot':
      dot(unit, node);
      return;
    case 'WarpgroupWait':
      unit.header('wgmma', 'warps');
      unit.writer.line('wgmma_wait<0>();');
      for (const name of unit.sums) unit.writer.line(`for (float& number : ${name}) keep_here(number);`);
      unit.sums.clear();
  }
}

function allocate(unit: Unit, { out, copies }: Of<'AllocateBarrier'>): void {
  unit.header('mbarrier');
  const count = (out.shape[0] as { value: number }).value;
  unit.writer.line(`// ${out.name}: ${count} barriers, each of ${copies} copies`);
  unit.writer.block('if (thread == 0)', () => {
    unit.writer.line(
      `for (int i = 0; i < ${count}; ++i) mbarrier_init(shared + ${sharedByte(unit, out)} + 8 * i, ${copies});`,
    );
    unit.writer.line('fence_mbarrier_init();');
  });
  unit.writer.line('__syncthreads();');
}

const barrierText = (unit: Unit, { barrier, index }: Pick<Of<'BarrierWait'>, 'barrier' | 'index'>): string =>
  sum(
    `shared + ${sharedByte(unit, barrier)}`,
    index.kind === 'number' && index.value === 0 ? '' : times(8, cpp(index)),
  );

/** The first byte of a box or operand, of which the offset names the others. */
function placeText(unit: Unit, tensor: MemoryTensor, { offset, axes }: Of<'CopyTensor'>['at']): string {
  const parts = offset.map((expr, axis) => {
    if (axes.includes(axis) || (expr.kind === 'number' && expr.value === 0)) return '';
    return times(((strideOf(tensor, axis) as { value: number }).value * tensor.dtype.bits) / 8, cpp(expr));
  });
  return sum(`shared + ${sharedByte(unit, tensor)}`, ...parts);
}

/** One thread asks; the box's bytes count at the barrier. */
function copy(unit: Unit, node: Of<'CopyTensor'>): void {
  const { to, from, source, shape } = node;
  unit.header('mbarrier', 'tma');
  unit.select('cp.async.bulk.tensor');
  const sizes = from.shape.map((_, axis) => {
    const dim = source.axes.indexOf(axis);
    return dim < 0 ? 1 : shape[dim]!;
  });
  const [inner, middle = 1, outer = 1] = sizes.toReversed() as [number, number?, number?];
  const map = unit.map(from, [inner, middle, outer]);
  const at = source.offset.map((expr) => cpp(expr)).toReversed();
  const bytes = (shape.reduce((all, size) => all * size, 1) * to.dtype.bits) / 8;
  unit.writer.line(`// ${node.text}`);
  unit.writer.block('if (thread == 0)', () => {
    unit.writer.line(`const uint32_t barrier = ${barrierText(unit, node)};`);
    unit.writer.line(`mbarrier_arrive_expect_tx(barrier, ${bytes});`);
    unit.writer.line(
      `tma_load_3d(${placeText(unit, to, node.at)}, &${map}, ${[...at, '0', '0'].slice(0, 3).join(', ')}, barrier);`,
    );
  });
}

function dot(unit: Unit, node: Of<'WarpgroupDot'>): void {
  const { a, c } = node;
  unit.header('wgmma');
  unit.use('four', 'eights');
  const eights = localCount(c.layout) / 4;
  unit.select(`wgmma.m64n${8 * eights}k16.${a.dtype.name}`);
  const name = unit.name(c);
  unit.sums.add(name);
  unit.writer.line(`// ${node.text}`);
  unit.writer.line('wgmma_fence();');
  const call = `wgmma_k16<${a.dtype.name === 'bf16'}, ${eights}>(eights<${eights}>(${name}), four(${unit.name(a)} + 4 * i)`;
  unit.writer.loop('i', localCount(a.layout) / 8, () =>
    unit.writer.line(`${call}, wgmma_descriptor(${placeText(unit, node.b, node.at)}) + 2 * i, true);`),
  );
  unit.writer.line('wgmma_commit();');
}
