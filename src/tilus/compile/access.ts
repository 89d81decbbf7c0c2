import { localCount } from '../../layout/layout.js';
import type { MemoryTensor, Node, Place, RegisterTensor } from '../check/program.js';
import { type Affine, affineText, cpp, sum, times } from './text.js';
import { axisNames, isStrided, planTile, strideOf, type Tile } from './tile.js';
import { storage, type Unit } from './unit.js';

/** A load or a store while it is written. */
interface Move {
  readonly unit: Unit;
  readonly tensor: MemoryTensor;
  readonly tile: Tile;
  readonly registers: RegisterTensor;
  readonly names: readonly string[];
  readonly load: boolean;
}

const VECTORS: Readonly<Record<number, string>> = {
  1: 'unsigned char',
  2: 'uint16_t',
  4: 'uint32_t',
  8: 'uint2',
  16: 'uint4',
};

/** Writes LoadGlobal, LoadShared, StoreGlobal or StoreShared. Returns the sentence why it cannot. */
export function writeMove(
  unit: Unit,
  node: Node,
  tensor: MemoryTensor,
  place: Place,
  registers: RegisterTensor,
): string | undefined {
  const tile = planTile(unit, tensor, place, registers);
  if (typeof tile === 'string') return tile;
  const load = node.op.startsWith('Load');
  const move: Move = { unit, tensor, tile, registers, names: axisNames(tensor.shape.length), load };
  const name = unit.name(registers);
  const { writer } = unit;
  const bytes = (tile.vector * tensor.dtype.bits) / 8;
  writer.block(!load && tile.first !== '' ? `if (${tile.first})` : '', () => {
    const index = tile.index.map((text, axis) => `${move.names[axis]} = ${text}`);
    writer.line(`const int ${index.join(', ')};`);
    if (load && bytes < 4) writer.line(`for (auto& word : ${name}) word = 0;`);
    pieces(
      move,
      0,
      { constant: 0, terms: [] },
      tensor.shape.map(() => ({ constant: 0, terms: [] })),
    );
  });
  return undefined;
}

const plus = (a: Affine, name: string, times: number): Affine => ({ ...a, terms: [...a.terms, { name, times }] });

/** Loops over modes; inside of them one piece: `flat` its first element in the thread, `at` how far it lies along each dimension. */
function pieces(move: Move, depth: number, flat: Affine, at: readonly Affine[]): void {
  const mode = move.tile.modes[depth];
  if (!mode) {
    piece(move, flat, at);
    return;
  }
  const variable = `i${depth}`;
  const axis = move.tile.axes[mode.dim]!;
  move.unit.writer.loop(variable, mode.size, () =>
    pieces(
      move,
      depth + 1,
      plus(flat, variable, mode.flat),
      at.map((each, dim) => (dim === axis ? plus(each, variable, mode.step) : each)),
    ),
  );
}

function piece(move: Move, flat: Affine, at: readonly Affine[]): void {
  const { unit, tensor, tile, registers } = move;
  const { bits } = tensor.dtype;
  const size = (tile.vector * bits) / 8;
  const masks = tile.masked.map(
    (axis) => `${sum(move.names[axis]!, affineText(at[axis]!))} < ${cpp(tensor.shape[axis]!, 5)}`,
  );
  const wanted = masks.join(' && ');
  const name = unit.name(registers);
  unit.select(`${move.load ? 'ld' : 'st'}.${tensor.scope}.${size >= 1 ? 8 * size : `${bits} bits`}`);
  if (size < 1 || !Number.isInteger(size)) {
    bitPiece(move, flat, at, wanted);
    return;
  }
  const address = addressText(move, at);
  const word = affineText(flat, bits / 32) || '0';
  const whole = size >= 4;
  const target = whole ? `${name} + ${word}` : '';
  const shift = affineText(flat, bits) || '0';
  const small = storage(registers) !== 'uint32_t';
  if (small && !whole) throw new RangeError('registers of 32 bits move whole');
  if (tensor.scope === 'shared') {
    sharedPiece(move, address, size, target, shift);
    return;
  }
  if (move.load) {
    unit.use(whole ? 'load_global' : 'load_small');
    const tail = wanted === '' ? '' : `, ${wanted}`;
    if (whole) unit.writer.line(`load_global<${VECTORS[size]}>(${target}, ${address}${tail});`);
    else
      unit.writer.line(
        `${name}[(${shift}) / 32] |= load_small<${VECTORS[size]}>(${address}${tail}) << (${shift}) % 32;`,
      );
    return;
  }
  const guard = wanted === '' ? '' : `if (${wanted}) `;
  if (whole) {
    unit.use('store_global');
    unit.writer.line(`${guard}store_global<${VECTORS[size]}>(${address}, ${target});`);
  } else {
    const value = `static_cast<${VECTORS[size]}>(${name}[(${shift}) / 32] >> (${shift}) % 32)`;
    unit.writer.line(`${guard}*reinterpret_cast<${VECTORS[size]}*>(${address}) = ${value};`);
  }
}

function sharedPiece(move: Move, address: string, size: number, target: string, shift: string): void {
  const { unit } = move;
  const name = unit.name(move.registers);
  unit.header('shared_memory');
  if (size >= 4) {
    unit.use(move.load ? 'load_shared' : 'store_shared');
    const at = `shared + ${address}`;
    unit.writer.line(
      move.load ? `load_shared<${size / 4}>(${target}, ${at});` : `store_shared<${size / 4}>(${at}, ${target});`,
    );
    return;
  }
  const type = VECTORS[size];
  const place = `reinterpret_cast<${type}*>(dynamic_shared() + ${address})`;
  if (move.load) unit.writer.line(`${name}[(${shift}) / 32] |= static_cast<uint32_t>(*${place}) << (${shift}) % 32;`);
  else unit.writer.line(`*${place} = static_cast<${type}>(${name}[(${shift}) / 32] >> (${shift}) % 32);`);
}

/** An element of less than a byte, bit by bit (Tilus, section 7.1). */
function bitPiece(move: Move, flat: Affine, at: readonly Affine[], wanted: string): void {
  const { unit, tensor } = move;
  const { bits } = tensor.dtype;
  const position = positionText(move, at);
  const base = tensor.scope === 'shared' ? `dynamic_shared() + ${sharedByte(unit, tensor)}` : unit.name(tensor);
  const name = unit.name(move.registers);
  const shift = affineText(flat, bits) || '0';
  if (tensor.scope === 'shared') unit.header('shared_memory');
  if (move.load) {
    unit.use('load_bits');
    const tail = wanted === '' ? '' : `, ${wanted}`;
    unit.writer.block('', () => {
      unit.writer.line(`const uint32_t v = load_bits(${base}, ${bits}ll * (${position}), ${bits}${tail});`);
      unit.writer.line(`${name}[(${shift}) / 32] |= v << (${shift}) % 32;`);
      if (32 % bits !== 0 && localCount(move.registers.layout) * bits > 32)
        unit.writer.line(
          `if ((${shift}) % 32 + ${bits} > 32) ${name}[(${shift}) / 32 + 1] |= v >> (32 - (${shift}) % 32);`,
        );
    });
    return;
  }
  unit.use('store_bits', 'bits_at');
  const guard = wanted === '' ? '' : `if (${wanted}) `;
  unit.writer.line(
    `${guard}store_bits(${base}, ${bits}ll * (${position}), ${bits}, bits_at(${name}, ${shift}, ${bits}));`,
  );
}

/** The first byte of a shared tensor in the block's shared memory. */
export function sharedByte(unit: Unit, tensor: MemoryTensor): number {
  return unit.program.shared.places.find((each) => each.tensor === tensor)!.byte;
}

/** The element's number in the tensor: digits of each index times their strides. */
function positionText(move: Move, at: readonly Affine[]): string {
  const parts = move.tensor.modes.flatMap((modes, axis) => {
    const index = sum(move.names[axis]!, affineText(at[axis]!));
    let below = 1;
    return modes.toReversed().map((mode, i) => {
      const digit =
        i === 0 && modes.length === 1
          ? `(${index})`
          : `((${index}) / ${below}${i < modes.length - 1 ? ` % ${mode.size}` : ''})`;
      below *= mode.size ?? 1;
      return mode.stride.kind === 'number' && mode.stride.value === 1 ? digit : `${cpp(mode.stride, 7)} * ${digit}`;
    });
  });
  return parts.join(' + ').replace(/\((\w+)\)/g, '$1');
}

/** Where a piece lies: a pointer in global memory, bytes of the block's shared memory. */
function addressText(move: Move, at: readonly Affine[]): string {
  const { unit, tensor } = move;
  const bytes = tensor.dtype.bits / 8;
  const size = bytes >= 1 ? `${bytes}` : '';
  if (tensor.scope === 'shared' && tensor.swizzle)
    return `${sharedByte(unit, tensor)} + ${swizzledText(
      unit,
      tensor,
      move.names.map((name, axis) => sum(name, affineText(at[axis]!))),
    )}`;
  if (tensor.scope === 'shared') {
    const position = positionText(move, at);
    return `${sharedByte(unit, tensor)} + ${bytes >= 1 ? times(size, position) : `(${position}) / ${8 / tensor.dtype.bits}`}`;
  }
  if (!isStrided(tensor) || bytes < 1) {
    const position = `(1ll * (${positionText(move, at)}))`;
    return `${unit.name(tensor)} + ${bytes >= 1 ? times(size, position) : `${position} / ${8 / tensor.dtype.bits}`}`;
  }
  const parts = move.names.map((name, axis) => {
    const stride = strideOf(tensor, axis);
    const index = sum(name, affineText(at[axis]!));
    const one = stride.kind === 'number' ? `${stride.value * bytes}ll` : `${size}ll * ${cpp(stride, 7)}`;
    return times(one === '1ll' ? 1 : one, index);
  });
  return sum(unit.name(tensor), ...parts.filter((_, axis) => move.names[axis] !== undefined));
}

/** The byte of an element of a swizzled tensor, relative to its first; `index` along each dimension. */
export function swizzledText(unit: Unit, tensor: MemoryTensor, index: readonly string[]): string {
  const columns = (tensor.shape.at(-1) as { value: number }).value;
  const bytes = tensor.dtype.bits / 8;
  unit.use('swizzled');
  const rows = index.slice(0, -1).map((text, axis) => {
    const stride = (strideOf(tensor, axis) as { value: number }).value / columns;
    return times(stride, text);
  });
  const column = index.at(-1)!;
  return `swizzled<${columns * bytes}>(${sum(...rows)}, ${times(bytes, column)})`;
}
