import { LDMATRIX, MMA_M16N8K16, MMA_M16N8K32, MMA_M16N8K64, WGMMA_M64N8K16 } from '../../../src/layout/fragment.js';
import { indexAt, type Layout, localCount, threadCount } from '../../../src/layout/layout.js';
import { columnSpatial, local, spatial } from '../../../src/layout/make.js';
import { product } from '../../../src/layout/product.js';

/** Of each lane, of each element in its registers: the coordinates. */
export type FragmentMap = readonly (readonly (readonly number[])[])[];

function mapOf(layout: Layout): FragmentMap {
  return Array.from({ length: threadCount(layout) }, (_, lane) =>
    Array.from({ length: localCount(layout) }, (_, element) => indexAt(layout, lane, element)),
  );
}

/** Matrix, row and column: the matrices of a load follow one another. */
const loads = (matrix: Layout, count: number): FragmentMap =>
  mapOf(matrix).map((elements) => Array.from({ length: count }, (_, i) => elements.map((at) => [i, ...at])).flat());

/** What src/layout says of every instruction that test/gpu/native/probe.cpp asks about, by its names. */
export function declaredMaps(): Record<string, FragmentMap> {
  const maps: Record<string, FragmentMap> = {};
  for (const count of [1, 2, 4]) {
    maps[`ldmatrix.x${count}`] = loads(LDMATRIX.plain, count);
    maps[`ldmatrix.x${count}.trans`] = loads(LDMATRIX.trans, count);
  }
  const add = (name: string, operands: Readonly<Record<string, Layout>>): void => {
    for (const [operand, layout] of Object.entries(operands)) maps[`${name} ${operand}`] = mapOf(layout);
  };
  const { c } = MMA_M16N8K16;
  add('m16n8k16.f16', MMA_M16N8K16);
  add('m16n8k16.bf16', MMA_M16N8K16);
  add('m16n8k8.f16', { a: c, b: product(columnSpatial(4, 8), local(2, 1)), c });
  add('m16n8k32.s8', { ...MMA_M16N8K32, c });
  add('m16n8k64.s4', { ...MMA_M16N8K64, c });
  // Sparse: A's kept columns are a dense A, B is two of B along k.
  add('sp.m16n8k32.f16', { a: MMA_M16N8K16.a, b: product(local(2, 1), MMA_M16N8K16.b), c });
  // Nibbles of metadata: rows r and r + 8, four quads of k a lane, from the first two lanes of every four.
  const metadata = mapOf(product(local(2, 1), spatial(8, 2), local(1, 4)));
  maps['sp.m16n8k32.f16 e'] = Array.from({ length: 32 }, (_, lane) =>
    lane % 4 < 2 ? metadata[2 * Math.floor(lane / 4) + (lane % 4)]! : Array.from({ length: 8 }, () => [-1, -1]),
  );
  add('wgmma.m64n8k16.f16', WGMMA_M64N8K16);
  add('wgmma.m64n8k16.bf16', WGMMA_M64N8K16);
  return maps;
}
