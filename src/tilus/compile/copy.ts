import type { Instruction } from '../check/program.js';
import { sharedByte, swizzledText } from './access.js';
import { cpp, sum, times } from './text.js';
import { axisNames, isStrided, strideOf } from './tile.js';
import type { Unit } from './unit.js';

/** Writes CopyAsync: chunks of 16 bytes by the threads in turn, zeros beyond the tensor. Returns the sentence why it cannot. */
export function writeCopy(unit: Unit, node: Instruction & { op: 'CopyAsync' }): string | undefined {
  const { to, from, at, source, shape } = node;
  if (!isStrided(to) || !isStrided(from)) return 'cp.async needs row-major tensors';
  const { bits } = to.dtype;
  const per = 128 / bits;
  for (const [axis, offset] of source.offset.entries()) {
    const step = unit.ranges.of(strideOf(from, axis)).divisor * unit.ranges.of(offset).divisor;
    if (step % per !== 0)
      return `the ${axis === from.shape.length - 1 ? 'offset' : 'rows'} in ${from.name} may begin at no multiple of 16 bytes`;
  }
  const axis = source.axes.at(-1)!;
  const others = [...from.shape.keys()].filter((each) => each !== axis);
  if (others.some((each) => unit.ranges.of(strideOf(from, each)).divisor % per !== 0))
    return `rows of ${from.name} may begin at no multiple of 16 bytes`;
  const chunks = shape.reduce((all, size) => all * size, 1) / per;
  const { threads } = unit.program;
  unit.header('cp_async', 'shared_memory');
  unit.select('cp.async.16');
  const { writer } = unit;
  const loop =
    chunks > threads
      ? `for (int chunk = thread; chunk < ${chunks}; chunk += ${threads})`
      : chunks < threads
        ? `if (const int chunk = thread; chunk < ${chunks})`
        : '';
  if (chunks > threads) writer.line('#pragma unroll');
  writer.block(loop, () => {
    if (loop === '') writer.line('const int chunk = thread;');
    const names = axisNames(shape.length);
    let below = 1;
    const digits = shape.toReversed().map((size, i) => {
      const count = i === 0 ? size / per : size;
      const digit = sum(below === 1 ? 'chunk' : `chunk / ${below}`) + (i === shape.length - 1 ? '' : ` % ${count}`);
      below *= count;
      return i === 0
        ? `${per === 1 ? '' : `${per} * `}${count === 1 ? '0' : digit.includes(' ') ? `(${digit})` : digit}`
        : count === 1
          ? '0'
          : digit;
    });
    writer.line(
      `const int ${digits
        .toReversed()
        .map((text, dim) => `${names[dim]} = ${text}`)
        .join(', ')};`,
    );
    const index = (place: typeof at): string[] =>
      place.offset.map((offset, each) => {
        const dim = place.axes.indexOf(each);
        return sum(offset.kind === 'number' && offset.value === 0 ? '' : cpp(offset, 5), dim < 0 ? '' : names[dim]!);
      });
    const target = `shared + ${sharedByte(unit, to)} + ${targetText(unit, node, index(at))}`;
    const indices = index(source);
    const address = sum(
      unit.name(from),
      ...indices.map((text, each) => times(scaleText(strideOf(from, each), bits), text)),
    );
    const masks = masksOf(unit, node, indices);
    const tail = masks.length === 0 ? '' : `, ${masks.join(' && ')} ? 16 : 0`;
    writer.line(`cp_async_16(${target}, ${address}${tail});`);
  });
  return undefined;
}

function scaleText(stride: ReturnType<typeof strideOf>, bits: number): string {
  if (stride.kind === 'number' && (stride.value * bits) % 8 === 0) return `${(stride.value * bits) / 8}ll`;
  return bits >= 8 ? `${bits / 8}ll * ${cpp(stride, 7)}` : `${bits}ll * ${cpp(stride, 7)} / 8`;
}

function targetText(unit: Unit, { to }: Instruction & { op: 'CopyAsync' }, index: readonly string[]): string {
  if (to.swizzle) return swizzledText(unit, to, index);
  const { bits } = to.dtype;
  const parts = index.map((text, axis) => {
    const bytes = ((strideOf(to, axis) as { value: number }).value * bits) / 8;
    return Number.isInteger(bytes) ? times(bytes, text) : `(${text}) / ${1 / bytes}`;
  });
  return sum(...parts);
}

/** Conditions under which a chunk lies in the tensor; the tensor's rows are whole chunks. */
function masksOf(
  unit: Unit,
  { from, source, shape }: Instruction & { op: 'CopyAsync' },
  indices: readonly string[],
): string[] {
  return source.offset.flatMap((offset, axis) => {
    const size = from.shape[axis]!;
    const dim = source.axes.indexOf(axis);
    const last = unit.ranges.of(offset).high + (dim < 0 ? 1 : shape[dim]!);
    return size.kind === 'number' && last <= size.value ? [] : [`${indices[axis]!} < ${cpp(size, 5)}`];
  });
}
