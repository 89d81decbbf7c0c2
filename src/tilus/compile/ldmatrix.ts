import { LDMATRIX } from '../../layout/fragment.js';
import { divide, type Quotient } from '../check/layout-map.js';
import type { MemoryTensor, Place, RegisterTensor } from '../check/program.js';
import { sharedByte, swizzledText } from './access.js';
import { bitsText, cpp, sum, times } from './text.js';
import { axisNames, isStrided, strideOf } from './tile.js';
import type { Unit } from './unit.js';

/**
 * Writes LoadShared as ldmatrix.x4 if the layout is a product that ends in the layout of ldmatrix (Tilus, section 8.1, step 2), rows of
 * eight elements are aligned and contiguous, and a thread has a multiple of four matrices. Returns whether it did.
 */
export function writeLdmatrix(unit: Unit, tensor: MemoryTensor, place: Place, registers: RegisterTensor): boolean {
  if (tensor.dtype.bits !== 16 || registers.layout.shape.length !== 2 || !aligned(unit, tensor, place)) return false;
  const plain = divide(registers.layout, LDMATRIX.plain);
  const quotient = plain ?? divide(registers.layout, LDMATRIX.trans);
  if (!quotient || quotient.tiles % 4 !== 0) return false;
  const texts = [0, 1].map((dim) => origins(quotient, dim));
  if (texts.includes(undefined)) return false;
  const { writer } = unit;
  const names = axisNames(tensor.shape.length);
  writer.block('', () => {
    const index = place.offset.map((offset, axis) => {
      const dim = place.axes.indexOf(axis);
      const parts = dim < 0 ? [] : [texts[dim]!, dim === 0 ? '(lane & 7)' : ''];
      return `${names[axis]} = ${sum(offset.kind === 'number' && offset.value === 0 ? '' : cpp(offset, 5), ...parts)}`;
    });
    const warp = index.some((text) => text.includes('warp')) ? 'warp = thread >> 5, ' : '';
    writer.line(`const int lane = thread & 31, ${warp}${index.join(', ')};`);
    for (let first = 0; first < quotient.tiles; first += 4) {
      const at = names.map((name, axis) => {
        const dim = place.axes.indexOf(axis);
        return dim < 0
          ? name
          : sum(name, String(8 * (quotient.coordinates[dim]![first]! - quotient.coordinates[dim]![0]!)));
      });
      unit.select(plain ? 'ldmatrix.x4' : 'ldmatrix.x4.trans');
      const base = sharedByte(unit, tensor);
      const address = tensor.swizzle ? swizzledText(unit, tensor, at) : strided(tensor, at);
      writer.line(
        `ldmatrix_x4${plain ? '' : '_trans'}(four(${unit.name(registers)} + ${first}), shared + ${base} + ${address});`,
      );
    }
  });
  unit.use('four');
  unit.header('ldmatrix', 'shared_memory');
  return true;
}

function aligned(unit: Unit, tensor: MemoryTensor, place: Place): boolean {
  if (!isStrided(tensor)) return false;
  const axis = place.axes.at(-1)!;
  const [stride, ...others] = [axis, ...tensor.modes.keys()].map((each) => strideOf(tensor, each));
  const rows = [...tensor.modes.keys()].filter((each) => each !== axis);
  if (stride?.kind !== 'number' || stride.value !== 1 || others.length === 0) return false;
  if (unit.ranges.of(place.offset[axis]!).divisor % 8 !== 0) return false;
  return rows.every((each) => unit.ranges.of(strideOf(tensor, each)).divisor % 8 === 0);
}

/** Where the matrix whose rows a lane gives begins along a dimension: by its warp, and by which of four matrices it gives a row of. */
function origins({ groups, tiles, coordinates }: Quotient, dim: number): string | undefined {
  const of = coordinates[dim]!;
  const at = (warp: number, tile: number): number => 8 * (of[warp * tiles + tile]! - of[0]!);
  for (let warp = 0; warp < groups; warp++)
    for (let tile = 0; tile < tiles; tile++) {
      const four = tile - (tile % 4);
      if (at(warp, tile) !== at(warp, 0) + at(0, four) + at(0, tile % 4)) return undefined;
    }
  const warps = bitsText(
    'warp',
    Array.from({ length: groups }, (_, warp) => at(warp, 0)),
  );
  const matrix = bitsText(
    '(lane >> 3)',
    Array.from({ length: 4 }, (_, tile) => at(0, tile)),
  );
  const start = of[0]! === 0 ? '' : String(8 * of[0]!);
  return warps === undefined || matrix === undefined
    ? undefined
    : sum(start, warps, matrix) === '0'
      ? ''
      : sum(start, warps, matrix);
}

function strided(tensor: MemoryTensor, at: readonly string[]): string {
  const parts = at.map((text, axis) => {
    return times((strideOf(tensor, axis) as { value: number }).value * 2, text);
  });
  return parts.join(' + ');
}
