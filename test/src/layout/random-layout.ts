import fc from 'fast-check';
import { type Layout, layout } from '../../../src/layout/layout.js';

/** Random layouts of a given rank: modes of 1 to 4, dealt to threads and locals in any order, some with replicas. */
export function randomLayout(rank: number, options: { replicas?: boolean } = {}): fc.Arbitrary<Layout> {
  return fc
    .tuple(
      fc.array(fc.array(fc.integer({ min: 1, max: 4 }), { minLength: 0, maxLength: 3 }), {
        minLength: rank,
        maxLength: rank,
      }),
      fc.array(fc.nat(), { minLength: 3 * rank + 2, maxLength: 3 * rank + 2 }),
      fc.array(fc.boolean(), { minLength: 3 * rank, maxLength: 3 * rank }),
      fc.array(fc.integer({ min: 1, max: 3 }), { maxLength: options.replicas === false ? 0 : 2 }),
    )
    .map(([dims, keys, local, replicas]) => {
      const shape = dims.map((modes) => modes.reduce((a, b) => a * b, 1));
      // Size-1 modes of an empty product would be read as trailing ones of the next dimension: keep to real factors there.
      const modeShape = dims.flatMap((modes) => (modes.reduce((a, b) => a * b, 1) === 1 ? [] : trimmed(modes)));
      const ids = modeShape.map((_, mode) => mode);
      const spatialPart = [...ids.filter((mode) => !local[mode]), ...replicas.map((count) => -count)];
      const localPart = ids.filter((mode) => local[mode]);
      const order = (list: number[]): number[] =>
        list
          .map((mode, i) => ({ mode, key: keys[i]! }))
          .sort((a, b) => a.key - b.key)
          .map((each) => each.mode);
      return layout(shape, modeShape, order(spatialPart), order(localPart));
    });
}

/** Size-1 modes inside a dimension stay; trailing ones would belong to the next dimension. */
function trimmed(modes: number[]): number[] {
  const list = [...modes];
  while (list.length > 1 && list.at(-1) === 1) list.pop();
  return list;
}

/** One element of `rank` dimensions, held by `count` threads alike. */
export function replicated(count: number, rank: number): Layout {
  return layout(new Array(rank).fill(1), [], [-count], []);
}
