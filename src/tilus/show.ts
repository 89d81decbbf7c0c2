import { localCount } from '../layout/layout.js';
import { layoutMap } from './check/layout-map.js';
import type { Program, RegisterTensor } from './check/program.js';
import { SHARED_LIMITS } from './check/shared.js';
import { describe } from './compile/header.js';
import { visit } from './compile/ranges.js';
import { wordsOf, written } from './compile/unit.js';

/** Rows and columns of a grid that are shown. */
const MOST = 16;

/** Every tensor of registers with its layout, as a product of the paper's primitives and as a grid of thread:element (Tilus, Fig. 4). */
export function showLayouts(program: Program): string {
  return tensors(program)
    .map((tensor) => {
      const { threads, locals } = layoutMap(tensor.layout);
      return `${describe(tensor)}\n  ${threads} threads of ${locals} elements\n${grid(tensor)}`;
    })
    .join('\n');
}

function tensors(program: Program): RegisterTensor[] {
  const found = new Map<number, RegisterTensor>();
  visit(program.body, (node) => {
    const tensor = written(node);
    if (tensor) found.set(tensor.id, tensor);
  });
  return [...found.values()];
}

/** The first rows and columns; of replicas the first thread, and how many there are. */
function grid({ layout }: RegisterTensor): string {
  const map = layoutMap(layout);
  const columns = layout.shape.at(-1)!;
  const rows = map.shape.reduce((all, size) => all * size, 1) / columns;
  const holders: string[] = [];
  for (let i = map.index.length - 1; i >= 0; i--)
    holders[map.index[i]!] = `${Math.floor(i / map.locals)}:${i % map.locals}`;
  const shown = Array.from({ length: Math.min(rows, MOST) }, (_, row) =>
    holders.slice(row * columns, row * columns + Math.min(columns, MOST)),
  );
  const width = Math.max(...shown.flat().map((cell) => cell.length));
  const lines = shown.map(
    (row) => `  ${row.map((cell) => cell.padStart(width)).join(' ')}${columns > MOST ? ' ...' : ''}`,
  );
  if (rows > MOST) lines.push('  ...');
  if (layout.replication > 1) lines.push(`  and ${layout.replication - 1} replicas of each`);
  return `${lines.join('\n')}\n`;
}

/** Where tensors lie: bytes of shared memory, words of a thread's registers. */
export function showMemory(program: Program, arch: keyof typeof SHARED_LIMITS): string {
  const { bytes, places } = program.shared;
  const lines = [`shared memory: ${bytes} of ${SHARED_LIMITS[arch]} bytes of sm_${arch}`];
  for (const { tensor, byte } of places) lines.push(`  byte ${byte}: ${describe(tensor)}`);
  lines.push(`registers: words of each of ${program.threads} threads, if all tensors were live at once`);
  for (const tensor of tensors(program))
    lines.push(`  ${wordsOf(tensor)}: ${tensor.name}, ${localCount(tensor.layout)} of ${tensor.dtype.name}`);
  return `${lines.join('\n')}\n`;
}
