// What src/layout says of the tensor core's operands, as tables for native/cuda/gemm/fragment.cuh: of each lane, of each element
// in its registers, row * columns + column. Options: --write. After npm run build.
import { writeFileSync } from 'node:fs';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { LDMATRIX, MMA_M16N8K16, MMA_M16N8K32, MMA_M16N8K64, WGMMA_M64N8K16 } from '../dist/src/layout/fragment.js';
import { indexAt, localCount, threadCount } from '../dist/src/layout/layout.js';
import { local, spatial } from '../dist/src/layout/make.js';
import { product } from '../dist/src/layout/product.js';

const cells = (layout) =>
  Array.from({ length: threadCount(layout) }, (_, lane) =>
    Array.from({ length: localCount(layout) }, (_, element) => {
      const [row, column] = indexAt(layout, lane, element);
      return row * layout.shape[1] + column;
    }),
  );

/** Nibbles of a sparse product's metadata: rows r and r + 8, four quads of columns a lane, in two lanes of every four. */
function metadata(selector) {
  const held = cells(product(local(2, 1), spatial(8, 2), local(1, 4)));
  const none = held[0].map(() => -1);
  return Array.from({ length: 32 }, (_, lane) =>
    (lane % 4) >> 1 === selector ? held[2 * (lane >> 2) + (lane % 2)] : none,
  );
}

const TABLES = {
  mma_m16n8k16_a: cells(MMA_M16N8K16.a),
  mma_m16n8k16_b: cells(MMA_M16N8K16.b),
  mma_m16n8_c: cells(MMA_M16N8K16.c),
  mma_m16n8k32_a: cells(MMA_M16N8K32.a),
  mma_m16n8k32_b: cells(MMA_M16N8K32.b),
  mma_m16n8k64_a: cells(MMA_M16N8K64.a),
  mma_m16n8k64_b: cells(MMA_M16N8K64.b),
  // A's kept columns are a dense A, B is two of B along k.
  mma_sp_m16n8k32_a: cells(MMA_M16N8K16.a),
  mma_sp_m16n8k32_b: cells(product(local(2, 1), MMA_M16N8K16.b)),
  mma_sp_m16n8k32_e0: metadata(0),
  mma_sp_m16n8k32_e1: metadata(1),
  wgmma_m64k16_a: cells(WGMMA_M64N8K16.a),
  wgmma_m64k32_a: cells(product(spatial(4, 1), MMA_M16N8K32.a)),
  wgmma_m64n16_d: cells(product(local(1, 2), WGMMA_M64N8K16.c)),
  ldmatrix: cells(LDMATRIX.plain),
  ldmatrix_trans: cells(LDMATRIX.trans),
};

/** Numbers with commas, as many a line as 120 columns hold. */
function filled(numbers) {
  const lines = [];
  for (const number of numbers) {
    const last = lines.at(-1);
    if (last !== undefined && last.length + `${number},`.length <= 120) lines[lines.length - 1] = `${last}${number},`;
    else lines.push(`${number},`);
  }
  return lines.join('\n');
}

export const file = fileURLToPath(new URL('../native/cuda/gemm/fragment_tables.inc', import.meta.url));
export const text = [
  '// Printed by scripts/fragment-tables.mjs: [lane][element] -> row * columns + column, -1 where a lane holds none.',
  '// clang-format off',
  ...Object.entries(TABLES).map(
    ([name, lanes]) => `constexpr short ${name}[${lanes.length}][${lanes[0].length}] = {\n${filled(lanes.flat())}\n};`,
  ),
  '',
].join('\n');

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  if (process.argv.includes('--write')) writeFileSync(file, text);
  else process.stdout.write(text);
}
