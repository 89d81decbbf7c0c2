import { layoutMap } from '../check/layout-map.js';
import type { RegisterTensor } from '../check/program.js';
import { numbers, type Registers } from './registers.js';
import type { Mapped } from './tiles.js';

/** A tensor of registers as its elements stand in it, a line a row; of what replicas hold, the first. */
export function printTensor(tensor: RegisterTensor, held: Registers): string {
  const map = layoutMap(tensor.layout);
  const values = numbers(tensor.dtype, held);
  const out: number[] = [];
  for (let i = map.index.length - 1; i >= 0; i--) out[map.index[i]!] = values[i]!;
  const columns = tensor.layout.shape.at(-1)!;
  const lines = [`${tensor.name}: ${tensor.dtype.name}[${tensor.layout.shape.join(', ')}]`];
  for (let at = 0; at < out.length; at += columns) lines.push(`  ${out.slice(at, at + columns).join(' ')}`);
  return `${lines.join('\n')}\n`;
}

/** What a tensor in memory is; its elements belong to nobody. */
export function printMemory({ tensor, shape }: Mapped): string {
  return `${tensor.name}: ${tensor.dtype.name}[${shape.join(', ')}] in ${tensor.scope} memory\n`;
}
