import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { addon, type KernelQuestion } from '../../native/binding.js';

// What is chosen for a grid of products, launch by launch, beside test/fixtures/choices.txt. Where a choice is meant to change,
// LPQ_WRITE_CHOICES=1 writes the file anew.
const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const known = path.join(root, 'test', 'fixtures', 'choices.txt');

/** A file that lists every kernel on record (native/cuda/machine-code.json) and holds none: the choice asks for names alone. */
function namesOnly(folder: string): string {
  const { kernels } = JSON.parse(readFileSync(path.join(root, 'native', 'cuda', 'machine-code.json'), 'utf8')) as {
    kernels: Record<string, Record<string, unknown>>;
  };
  const names = [...new Set(Object.values(kernels).flatMap((each) => Object.keys(each)))];
  const number = (value: number, bytes: 4 | 8) => {
    const out = Buffer.alloc(bytes);
    out.writeUInt32LE(value);
    return out;
  };
  const text = (value: string) => Buffer.concat([number(value.length, 4), Buffer.from(value)]);
  const file = path.join(folder, 'names.fatbin');
  const rows = [text('names'), number(names.length, 4), ...names.map(text), number(0, 8), number(0, 8)];
  writeFileSync(file, Buffer.concat([Buffer.from('LPQFAT2\0'), number(1, 4), ...rows]));
  return file;
}

const SHAPES = [
  [4096, 4096],
  [8192, 28672],
] as const;
const TOKENS = [1, 8, 12, 16, 17, 64, 65, 1024];
/** Layout, type, group, and zero points of groups or the constant. */
const WEIGHTS: readonly (readonly [string, string, number, 'u8' | 'f16' | 'i32' | number, ('f16' | 'bf16')?])[] = [
  ['tilus', 'u4', 128, 8],
  ['tilus', 'u4', 128, 8, 'bf16'],
  ['tilus', 'u4', 128, 'u8'],
  ['tilus', 'i4', 0, 0],
  ['tilus', 'u4', 32, 'f16'],
  ['tilus', 'u2', 64, 2],
  ['tilus', 'u7', 128, 'u8', 'bf16'],
  ['tilus', 'u8', 128, 128],
  ['tilus', 'f4e2m1', 32, 0],
  ['tilus', 'f6e3m2', 128, 0, 'bf16'],
  ['tilus', 'f8e5m2', 0, 0],
  ['tilus', 'f8e6m1', 128, 0],
  ['marlin', 'u4', 128, 0],
  ['marlin', 'u8', 0, 'i32', 'bf16'],
  ['turbomind', 'u4', 128, 0],
  ['turbomind', 'f8e4m3', 128, 0],
];

function table(): string[] {
  const lines: string[] = [];
  for (const device of ['h200', 'a100', 'rtx3090'])
    for (const [layout, type, group, zero, activations = 'f16'] of WEIGHTS)
      for (const [k, n] of SHAPES) {
        const scales = layout === 'tilus' ? activations : 'f16';
        const zeros = typeof zero === 'number' ? { zero } : { zeros: zero };
        const weights = { layout, type, group, activations, scales, ...zeros };
        const chosen = TOKENS.map((m) => {
          const { launches } = addon().explainKernel({ device, k, n, m, ...weights } as KernelQuestion);
          const counts = new Map<string, number>();
          for (const { kernel, grid, threads, shared, cluster } of launches) {
            const text = `${kernel.replace('lpq_', '')} ${grid}/${cluster} ${threads} ${shared}`;
            counts.set(text, (counts.get(text) ?? 0) + 1);
          }
          return `${m}: ${[...counts].map(([text, times]) => (times === 1 ? text : `${times} ${text}`)).join(' + ')}`;
        });
        lines.push(
          `${device} ${layout} ${type} ${activations} g${group} zero ${zero} ${k}x${n} | ${chosen.join(' | ')}`,
        );
      }
  return lines;
}

test('the kernels and launches that are chosen are those on record', () => {
  const folder = mkdtempSync(path.join(tmpdir(), 'lpq-choices-'));
  after(() => rmSync(folder, { recursive: true }));
  process.env.LPQ_CUDA_FATBIN = namesOnly(folder);
  const lines = table();
  if (process.env.LPQ_WRITE_CHOICES === '1') writeFileSync(known, `${lines.join('\n')}\n`);
  assert.deepEqual(lines, readFileSync(known, 'utf8').trimEnd().split('\n'));
});
