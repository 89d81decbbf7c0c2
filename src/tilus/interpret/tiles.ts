import { layoutMap } from '../check/layout-map.js';
import type { MemoryTensor, Place, RegisterTensor } from '../check/program.js';
import { fault } from './fault.js';
import type { Access, Memory } from './memory.js';
import type { Registers } from './registers.js';

/** A tensor in memory with its sizes and strides in this launch. */
export interface Mapped {
  readonly tensor: MemoryTensor;
  readonly memory: Memory;
  /** Byte of the memory that the tensor begins at. */
  readonly byte: number;
  readonly shape: readonly number[];
  /** Modes of each dimension, most significant first. */
  readonly modes: readonly (readonly { readonly size: number; readonly stride: number }[])[];
}

/** A place with its numbers. */
export interface Placed {
  readonly offset: readonly number[];
  readonly axes: readonly number[];
}

/** Where element `index` along a dimension lies, in elements. */
export function along(mapped: Mapped, axis: number, index: number): number {
  let rest = index;
  let at = 0;
  const modes = mapped.modes[axis]!;
  for (let i = modes.length - 1; i > 0; i--) {
    const { size, stride } = modes[i]!;
    at += (rest % size) * stride;
    rest = Math.floor(rest / size);
  }
  return at + rest * modes[0]!.stride;
}

/** Byte `at` of a row-major tensor whose rows are swizzled: chunks of 16 bytes are exchanged within rows, by the number of the row. */
export function swizzled(at: number, rowBytes: number): number {
  const row = Math.floor(at / rowBytes);
  const turn = rowBytes >= 128 ? row % 8 : Math.floor((row * rowBytes) / 128) % (rowBytes / 16);
  return at ^ (turn * 16);
}

/** Byte and bit of an element that lies `position` elements behind the tensor's first. */
function bitOf(mapped: Mapped, position: number): number {
  const { tensor } = mapped;
  const bit = position * tensor.dtype.bits;
  if (!tensor.swizzle) return mapped.byte * 8 + bit;
  const rowBytes = (mapped.shape.at(-1)! * tensor.dtype.bits) / 8;
  return (mapped.byte + swizzled(Math.floor(bit / 8), rowBytes)) * 8 + (bit % 8);
}

/** Calls `visit` with the position of every element of a tile; undefined for one outside of a tensor in global memory. */
function positions(
  access: Access,
  mapped: Mapped,
  { offset, axes }: Placed,
  registers: RegisterTensor,
  visit: (thread: number, at: number, position: number | undefined) => void,
): void {
  const map = layoutMap(registers.layout);
  const { tensor, shape } = mapped;
  let base = 0;
  let out = false;
  for (const [axis, start] of offset.entries()) {
    if (start < 0) fault(access, undefined, `begins at ${start} in dimension ${axis} of ${tensor.name}`);
    if (axes.includes(axis)) continue;
    if (start >= shape[axis]!) out = true;
    base += along(mapped, axis, start);
  }
  const tables = axes.map((axis, dim) =>
    Float64Array.from({ length: registers.layout.shape[dim]! }, (_, i) =>
      offset[axis]! + i < shape[axis]! ? along(mapped, axis, offset[axis]! + i) : Number.NaN,
    ),
  );
  if (tensor.scope === 'shared' && (out || tables.some((table) => Number.isNaN(table.at(-1)!))))
    fault(access, undefined, `takes an index beyond ${tensor.name}`);
  for (let thread = 0, at = 0; thread < map.threads; thread++)
    for (let local = 0; local < map.locals; local++, at++) {
      let position = base;
      for (let dim = 0; dim < tables.length; dim++) position += tables[dim]![map.coordinates[dim]![at]!]!;
      visit(thread, at, out || Number.isNaN(position) ? undefined : position);
    }
}

/** LoadGlobal and LoadShared: bits of each element; 0 outside of a tensor in global memory. */
export function loadTile(access: Access, mapped: Mapped, place: Placed, out: RegisterTensor): Registers {
  const map = layoutMap(out.layout);
  const held = new Uint32Array(map.threads * map.locals);
  const { bytes } = mapped.memory;
  const { bits } = mapped.tensor.dtype;
  const mask = bits === 32 ? 0xffffffff : 2 ** bits - 1;
  positions(access, mapped, place, out, (thread, at, position) => {
    if (position === undefined) return;
    const bit = bitOf(mapped, position);
    const byte = Math.floor(bit / 8);
    const count = Math.ceil(((bit % 8) + bits) / 8);
    mapped.memory.read(access, thread, byte, count);
    let value = 0;
    for (let i = count - 1; i >= 0; i--) value = value * 256 + bytes[byte + i]!;
    held[at] = (bits === 32 ? value : (value >>> (bit % 8)) & mask) >>> 0;
  });
  return held;
}

/** StoreGlobal and StoreShared: the first of the threads that hold an element stores it; what lies outside of global memory is dropped. */
export function storeTile(access: Access, mapped: Mapped, place: Placed, from: RegisterTensor, held: Registers): void {
  const { first } = layoutMap(from.layout);
  const { bytes } = mapped.memory;
  const { bits } = mapped.tensor.dtype;
  positions(access, mapped, place, from, (thread, at, position) => {
    if (position === undefined || first[thread] === 0) return;
    const bit = bitOf(mapped, position);
    const byte = Math.floor(bit / 8);
    const count = Math.ceil(((bit % 8) + bits) / 8);
    mapped.memory.write(access, thread, byte, count);
    if (bits >= 8) {
      for (let i = 0; i < count; i++) bytes[byte + i] = (held[at]! >>> (8 * i)) & 255;
      return;
    }
    const mask = (2 ** bits - 1) << (bit % 8);
    const value = held[at]! << (bit % 8);
    for (let i = 0; i < count; i++)
      bytes[byte + i] = (bytes[byte + i]! & ~(mask >> (8 * i))) | ((value >> (8 * i)) & 255);
  });
}

/** A copy under way: 16 bytes that `thread` waits for. */
export interface Copy {
  readonly memory: Memory;
  readonly byte: number;
  readonly bytes: Uint8Array;
}

/** CopyAsync: chunks of 16 bytes, by `threads` threads in turn. What lies outside of the global tensor is 0. */
export function copyTile(
  access: Access,
  to: Mapped,
  at: Placed,
  from: Mapped,
  source: Placed,
  shape: readonly number[],
  threads = access.threads,
): Copy[] {
  const { bits } = to.tensor.dtype;
  const per = 128 / bits;
  const chunks = shape.reduce((all, size) => all * size, 1) / per;
  const place = (mapped: Mapped, where: Placed, index: readonly number[]): number | undefined => {
    let position = 0;
    for (const [axis, start] of where.offset.entries()) {
      const dim = where.axes.indexOf(axis);
      const i = start + (dim < 0 ? 0 : index[dim]!);
      if (i < 0 || i >= mapped.shape[axis]!) return undefined;
      position += along(mapped, axis, i);
    }
    return position;
  };
  return Array.from({ length: chunks }, (_, chunk): Copy => {
    const thread = chunk % threads;
    const index: number[] = [];
    for (let dim = shape.length - 1, rest = chunk * per; dim >= 0; dim--) {
      index[dim] = rest % shape[dim]!;
      rest = Math.floor(rest / shape[dim]!);
    }
    const target = place(to, at, index);
    if (target === undefined) fault(access, thread, `copies beyond ${to.tensor.name}`);
    const byte = bitOf(to, target) / 8;
    const bytes = new Uint8Array(16);
    const start = place(from, source, index);
    if (start !== undefined) {
      const axis = source.axes.at(-1)!;
      const whole = Math.min(per, from.shape[axis]! - source.offset[axis]! - index.at(-1)!);
      const first = bitOf(from, start) / 8;
      if (first % 16 !== 0)
        fault(access, thread, `copies from byte ${first} of ${from.memory.name}, which is not a multiple of 16`);
      const count = (whole * bits) / 8;
      from.memory.read(access, thread, first, count);
      bytes.set(from.memory.bytes.subarray(first, first + count));
    }
    to.memory.begin(access, thread, byte, 16);
    return { memory: to.memory, byte, bytes };
  });
}

/** Numbers of a place. */
export function placed(place: Place, evaluate: (expr: Place['offset'][number]) => number): Placed {
  return { offset: place.offset.map(evaluate), axes: place.axes };
}
