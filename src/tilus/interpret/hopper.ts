import { WGMMA_M64N8K16 } from '../../layout/fragment.js';
import { layoutMap } from '../check/layout-map.js';
import type { HopperAction, Node, RegisterTensor } from '../check/program.js';
import type { Expr } from '../language/ast.js';
import { decodeTable } from '../types.js';
import { fault } from './fault.js';
import type { Access } from './memory.js';
import { numbers, type Registers, rounded } from './registers.js';
import { along, type Copy, copyTile, type Mapped, placed, swizzled } from './tiles.js';

/** The state of its block that an instruction reads. */
export interface Surroundings {
  readonly access: Access;
  number(expr: Expr): number;
  mapped(id: number): Mapped;
  held(tensor: RegisterTensor): Registers;
  set(id: number, registers: Registers): void;
}

interface Barrier {
  /** Phases that have ended. */
  phase: number;
  copies: Copy[][];
}

interface Read {
  readonly memory: Mapped['memory'];
  readonly byte: number;
  readonly bytes: number;
}

/** Barriers and warpgroup products of a block while it runs. */
export class Hopper {
  private readonly barriers = new Map<string, Barrier>();
  private readonly expected = new Map<number, number>();
  private readonly sums = new Set<number>();
  private reads: Read[] = [];

  /** Whether products into this tensor are in flight, so that no instruction may read it. */
  pending(id: number): boolean {
    return this.sums.has(id);
  }
  /** Operations that are in flight at the end of the block. */
  get unfinished(): boolean {
    return this.sums.size > 0 || [...this.barriers.values()].some(({ copies }) => copies.length > 0);
  }

  execute(node: Node & HopperAction, block: Surroundings): void {
    switch (node.op) {
      case 'AllocateBarrier':
        this.expected.set(node.out.id, node.copies);
        return;
      case 'CopyTensor': {
        const [to, from] = [block.mapped(node.to.id), block.mapped(node.from.id)];
        const number = (expr: Expr): number => block.number(expr);
        // One thread asks for the box.
        const copies = copyTile(
          block.access,
          to,
          placed(node.at, number),
          from,
          placed(node.source, number),
          node.shape,
          1,
        );
        this.barrier(node, block).copies.push(copies);
        return;
      }
      case 'BarrierWait':
        this.wait(node, block);
        return;
      case 'WarpgroupDot':
        this.dot(node, block);
        return;
      case 'WarpgroupWait':
        // Until now the operands were read.
        for (const each of this.reads) this.read(each, block);
        this.reads = [];
        this.sums.clear();
    }
  }

  private barrier(node: { barrier: { id: number; name: string }; index: Expr }, block: Surroundings): Barrier {
    const index = block.number(node.index);
    const count = block.mapped(node.barrier.id).shape[0]!;
    if (index < 0 || index >= count) fault(block.access, undefined, `takes barrier ${index} of ${count}`);
    const key = `${node.barrier.id}.${index}`;
    const found = this.barriers.get(key) ?? { phase: 0, copies: [] };
    this.barriers.set(key, found);
    return found;
  }

  /** Returns when the phase of this parity has ended: at once, or with the copies that the barrier waits for. */
  private wait(node: Node & HopperAction & { op: 'BarrierWait' }, block: Surroundings): void {
    const barrier = this.barrier(node, block);
    if (barrier.phase % 2 !== block.number(node.parity)) return;
    const expected = this.expected.get(node.barrier.id)!;
    if (barrier.copies.length < expected)
      fault(
        block.access,
        undefined,
        `waits forever: ${barrier.copies.length} of ${expected} copies of this phase have begun`,
      );
    // All threads wait, so that all see what has landed.
    for (const copies of barrier.copies.splice(0, expected))
      for (const copy of copies) copy.memory.land({ ...block.access, epoch: -1 }, copy.byte, copy.bytes);
    barrier.phase++;
  }

  private dot(node: Node & HopperAction & { op: 'WarpgroupDot' }, block: Surroundings): void {
    const columns = layoutMap(node.c.layout).shape[1]!;
    const mapped = block.mapped(node.b.id);
    const { offset } = placed(node.at, (expr) => block.number(expr));
    const first = offset.reduce((at, start, axis) => at + along(mapped, axis, start), 0) * 2;
    const reads = { memory: mapped.memory, byte: mapped.byte + first, bytes: columns * 128 };
    this.read(reads, block);
    this.reads.push(reads);
    const table = decodeTable(node.b.dtype);
    const b = Float64Array.from({ length: columns * 64 }, (_, i) => {
      const byte = mapped.byte + swizzled(first + 2 * i, 128);
      return table[mapped.memory.bytes[byte]! + 256 * mapped.memory.bytes[byte + 1]!]!;
    });
    const a = logical(node.a, block.held(node.a));
    const sums = logical(node.c, block.held(node.c));
    const depth = layoutMap(node.a.layout).shape[1]!;
    for (let row = 0; row < 64; row++)
      for (let column = 0; column < columns; column++) {
        let sum = sums[row * columns + column]!;
        for (let k = 0; k < depth; k += 16) {
          for (let at = k; at < k + 16; at++) sum += a[row * depth + at]! * b[column * 64 + at]!;
          sum = Math.fround(sum);
        }
        sums[row * columns + column] = sum;
      }
    const { index } = layoutMap(node.c.layout);
    block.set(
      node.out.id,
      rounded(
        node.c.dtype,
        Float64Array.from(index, (at) => sums[at]!),
      ),
    );
    this.sums.add(node.out.id);
  }

  /** The warpgroup reads: threads of all its warps. */
  private read({ memory, byte, bytes }: Read, { access }: Surroundings): void {
    for (const thread of [0, layoutMap(WGMMA_M64N8K16.c).threads - 1]) memory.read(access, thread, byte, bytes);
  }
}

/** The numbers of a tensor, row by row. */
function logical(tensor: RegisterTensor, held: Registers): Float64Array {
  const { index } = layoutMap(tensor.layout);
  const values = numbers(tensor.dtype, held);
  const out = new Float64Array(index.length);
  for (let i = 0; i < index.length; i++) out[index[i]!] = values[i]!;
  return out;
}
