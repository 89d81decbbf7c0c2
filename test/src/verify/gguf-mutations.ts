import { type Container, type Stored, u32 } from './gguf-forge.js';
import { flipped, swapped } from './gguf-forgeries.js';

/** Where the codes of a block lie. */
const CODES: Readonly<Record<number, readonly [from: number, to: number, size: number]>> = {
  8: [2, 34, 34],
  10: [16, 80, 84],
  11: [32, 96, 110],
  12: [16, 144, 144],
  13: [48, 176, 176],
  14: [0, 128, 210],
};

/** A random change; `draw` gives a number below its argument. False: nothing was changed. */
export type Mutation = (file: Container, draw: (below: number) => number) => boolean | undefined;

/** Blocks of the tensor's type that differ change places. */
function swapBlocks({ data }: Stored, size: number, draw: (below: number) => number): boolean {
  const [a, b] = [draw(data.length / size), draw(data.length / size)].map((i) => i * size) as [number, number];
  const [left, right] = [Buffer.from(data.subarray(a, a + size)), Buffer.from(data.subarray(b, b + size))];
  if (left.equals(right)) return false;
  right.copy(data, a);
  left.copy(data, b);
  return true;
}

export const MUTATIONS: Readonly<Record<string, Mutation>> = {
  'a bit of a value': ({ keys }, draw) => {
    const { value, type } = keys[draw(keys.length)]!;
    // Behind the type and the number of an array: lengths inside would only make the file unreadable.
    const from = type === 9 ? 12 : 0;
    if (value.length === from) return false;
    flipped(value, 8 * from + draw(8 * (value.length - from)));
    return true;
  },
  'a key’s name': ({ keys }, draw) => {
    const each = keys[draw(keys.length)]!;
    each.key = each.key.replace(/.$/, '_');
    return true;
  },
  'a key less': (file, draw) => file.keys.splice(draw(file.keys.length), 1).length === 1,
  'a key twice as long': ({ keys }, draw) => {
    keys.splice(draw(keys.length), 0, { key: `x.${draw(1000)}`, type: 4, value: u32(draw(1000)) });
    return true;
  },
  'two keys exchanged': (file, draw) => {
    const [a, b] = [draw(file.keys.length), draw(file.keys.length)];
    file.keys = swapped(file.keys, a, b);
    return a !== b;
  },
  'two tensors exchanged in the header': (file, draw) => {
    const [a, b] = [draw(file.tensors.length), draw(file.tensors.length)];
    file.tensors = swapped(file.tensors, a, b);
    return a !== b;
  },
  'a tensor less': (file, draw) => file.tensors.splice(draw(file.tensors.length), 1).length === 1,
  'a row of zeros': (file, draw) => {
    const tensor = file.tensors[draw(file.tensors.length)]!;
    const size = file.row(tensor);
    const at = draw(tensor.data.length / size) * size;
    const row = tensor.data.subarray(at, at + size);
    if (row.every((byte) => byte === 0)) return false;
    row.fill(0);
    return true;
  },
  'two blocks exchanged': (file, draw) => {
    const tensor = file.tensors[draw(file.tensors.length)]!;
    const size = { 2: 18, 3: 20, 8: 34, 10: 84, 11: 110, 12: 144, 13: 176, 14: 210, 39: 17 }[tensor.type] ?? 4;
    return swapBlocks(tensor, size, draw);
  },
  'a bit where codes are exact, eight codes where they were searched for': (file, draw) => {
    const tensor = file.tensors[draw(file.tensors.length)]!;
    const codes = CODES[tensor.type];
    const exact = codes === undefined || file.key('lpq.blocks_from').value.includes('codes');
    if (codes === undefined || (exact && tensor.name.startsWith('blk.'))) {
      flipped(tensor.data, draw(8 * tensor.data.length));
      return true;
    }
    const [from, to, size] = codes;
    const at = draw(tensor.data.length / size) * size + from + draw((to - from) / 8) * 8;
    for (let i = 0; i < 8; i++) tensor.data[at + i]! ^= 0xff;
    return true;
  },
};
