import assert from 'node:assert/strict';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { MMA_M16N8K16, WORD_75316420 } from '../../../src/layout/fragment.js';
import { columnSpatial, local, spatial } from '../../../src/layout/make.js';
import { bitPositions, type PackMode } from '../../../src/layout/memory.js';
import { product } from '../../../src/layout/product.js';
import { COMET_TILE, cometWeight } from '../../../src/pack/layouts/comet.js';
import { MARLIN_WARP_TILE, marlinScales, marlinWeight } from '../../../src/pack/layouts/marlin.js';
import { columnStreams, rowStreams } from '../../../src/pack/layouts/stream.js';
import { pairWords, TILUS_TILE, tilusWeight } from '../../../src/pack/layouts/tilus.js';
import { TURBOMIND_B, turbomindWeight } from '../../../src/pack/layouts/turbomind.js';
import { alignRows, printGrid, printLayout, printThreads } from './print.js';
import { printWords } from './print-memory.js';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..', '..');
const dir = path.join(root, 'docs', 'internals', 'layouts');

function modes(title: string, list: readonly PackMode[]): string[][] {
  return list.map((mode, i) => [i === 0 ? title : '', String(mode.size), 'x', String(mode.stride), 'bits']);
}

/** Column numbers of the scales in the order of their positions. */
function scaleOrder(perChannel: boolean, count: number): string {
  const layout = marlinScales(64, 1, perChannel);
  const columns = Array.from({ length: 64 }, (_, column) => ({ column, at: bitPositions(layout, column, 0)[0]! }));
  columns.sort((a, b) => a.at - b.at);
  return columns
    .slice(0, count)
    .map(({ column }) => column)
    .join(' ');
}

/** Of each pair that lies in no whole field: its bits from the lowest, as word.bit of the lower half. */
function spareRows(bits: number): string[][] {
  const order = pairWords(bits);
  const whole = Math.floor(16 / bits) * bits;
  return Array.from({ length: 16 - whole }, (_, i) => [
    `pair ${whole + i}`,
    ...order
      .slice(2 * bits * (whole + i), 2 * bits * (whole + i) + bits)
      .map((at) => `${Math.floor(at / 32)}.${at % 32}`),
  ]);
}

const marlin = marlinWeight(256, 128);
const blocks: Record<string, string> = {
  local: printGrid(local(2, 3)),
  spatial: printGrid(spatial(2, 3)),
  column_spatial: printGrid(columnSpatial(2, 3)),
  product: printGrid(product(local(2, 1), spatial(2, 3))),
  'mma-a': printGrid(MMA_M16N8K16.a),
  'mma-b': printGrid(MMA_M16N8K16.b),
  'mma-c': printGrid(MMA_M16N8K16.c),
  'marlin-tile': `${printLayout(MARLIN_WARP_TILE)}\n\nfirst 16 columns:\n${printGrid(MARLIN_WARP_TILE)
    .split('\n')
    .map((line) => line.split(/\s+/).filter(Boolean).slice(0, 16))
    .map((cells) => cells.map((cell) => cell.padStart(4)).join('  '))
    .join('\n')}`,
  'word-order': printThreads(WORD_75316420).replaceAll('v', '#'),
  'marlin-words': printWords(marlinWeight(64, 16), 0, 8),
  'marlin-modes': alignRows([...modes('n', marlin.rows), ...modes('k', marlin.columns)]),
  'marlin-scales': `grouped:     ${scaleOrder(false, 24)} ...\nper channel: ${scaleOrder(true, 24)} ...`,
  'marlin8-words': printWords(marlinWeight(64, 16, 8), 0, 4),
  'turbomind-tile': printLayout(TURBOMIND_B),
  'turbomind-words': printWords(turbomindWeight(64, 32, 4, 'b'), 0, 4),
  'turbomind-a-words': printWords(turbomindWeight(64, 32, 4, 'a'), 0, 4),
  'turbomind-sm70-words': printWords(turbomindWeight(64, 32, 4, 'sm70'), 0, 4),
  'tilus-tile': `${printLayout(TILUS_TILE)}\n\nfirst 8 rows, 16 columns:\n${printGrid(TILUS_TILE)
    .split('\n')
    .slice(0, 8)
    .map((line) => line.split(/\s+/).filter(Boolean).slice(0, 16))
    .map((cells) => cells.map((cell) => cell.padStart(4)).join('  '))
    .join('\n')}`,
  'tilus-4': printWords(tilusWeight(32, 128, 4), 0, 4),
  'tilus-6': printWords(tilusWeight(32, 128, 6), 0, 4),
  'tilus-spare': alignRows(
    [3, 5, 6, 7].flatMap((bits) => spareRows(bits).map((cells, i) => [i === 0 ? `${bits} bits` : '', ...cells])),
  ),
  'comet-tile': `${printLayout(COMET_TILE)}\n\nfirst 8 columns of 20 rows:\n${printGrid(COMET_TILE)
    .split('\n')
    .slice(0, 20)
    .map((line) => line.split(/\s+/).filter(Boolean).slice(0, 8))
    .map((cells) => cells.map((cell) => cell.padStart(5)).join('  '))
    .join('\n')}`,
  'comet-words': printWords(cometWeight(16, 128), 0, 8),
  'gptq-3': printWords(columnStreams(2, 32, 3), 0, 4),
  'compressed-3': printWords(rowStreams(1, 32, 3), 0, 3),
};

test('the pages of docs/internals/layouts show what the declarations say', () => {
  const used = new Set<string>();
  for (const page of readdirSync(dir)) {
    const file = path.join(dir, page);
    const text = readFileSync(file, 'utf8');
    const expected = text.replace(/```text (\S+)\n[\s\S]*?```/g, (_, name: string) => {
      assert.ok(blocks[name] !== undefined, `${page} has a block '${name}' that nothing prints`);
      used.add(name);
      return `\`\`\`text ${name}\n${blocks[name]
        .split('\n')
        .map((line) => line.trimEnd())
        .join('\n')}\n\`\`\``;
    });
    if (process.env.LPQ_UPDATE_DOCS) writeFileSync(file, expected);
    else assert.equal(text, expected, `${page}: run LPQ_UPDATE_DOCS=1 node scripts/test.mjs layout/docs`);
  }
  assert.deepEqual([...used].sort(), Object.keys(blocks).sort());
});
