import type { Settings } from '../../src/tilus/check/check.js';
import { combinations } from '../../src/tilus/enumerate.js';

/** A product: C [m, n] = A [m, k] W [k, n], a scale for each `group` of k; 0: one for each column. */
export interface ProgramPoint {
  readonly type: string;
  readonly k: number;
  readonly n: number;
  readonly m: number;
  readonly group: number;
}

const TILE = 16;
/** Blocks that a device of some hundred multiprocessors has room for, and those that leave most of it idle. */
const [FEWEST_BLOCKS, MOST_BLOCKS] = [48, 2048];

/** Programs that compute products, and the configurations of each that are worth timing. */
export const SPACES = { matmul: matmulSpace, hopper: hopperSpace } as const;
export type SpaceName = keyof typeof SPACES;

/** Tiles of tokens and stages; the program has one scale for each row of W. */
function hopperSpace({ type, k, n, m }: ProgramPoint): Settings[] {
  const most = Math.max(8, 2 ** Math.ceil(Math.log2(m)));
  return combinations({ BM: [8, 16, 32, 64, 128, 256].filter((bm) => bm <= most), STAGES: [2, 3, 4, 6, 8] }).map(
    (settings) => ({ T: type, N: n, K: k, ...settings }),
  );
}

/** Tiles, stages and parts of K that are worth timing for a product: about 200, most of which a device has room for. */
function matmulSpace(point: ProgramPoint): Settings[] {
  const { type, k, n, m } = point;
  const group = point.group === 0 ? k : point.group;
  const rows = Math.ceil(m / TILE);
  const values =
    rows <= 1
      ? { WM: [1], RM: [1], WN: [1, 2, 4, 8], RN: [1, 2, 4], RK: [2, 4, 8], STAGES: [3, 4, 6], SPLIT: [1, 2, 4, 8] }
      : { WM: [1, 2, 4], RM: [1, 2, 4, 8], WN: [2, 4, 8], RN: [1, 2, 4], RK: [2, 4], STAGES: [2, 3, 4], SPLIT: [1] };
  return combinations(values)
    .filter((settings) => {
      const { WM, RM, WN, RN, RK, STAGES, SPLIT } = settings as Record<keyof typeof values, number>;
      const [bm, bn, bk] = [TILE * WM * RM, 8 * WN * RN, TILE * RK];
      const steps = k / bk / SPLIT;
      const blocks = Math.ceil(m / bm) * (n / bn) * SPLIT;
      const warps = WM * WN;
      return (
        n % bn === 0 &&
        Number.isInteger(steps) &&
        group % bk === 0 &&
        steps >= STAGES &&
        blocks <= MOST_BLOCKS * Math.max(1, rows / 8) &&
        (rows > 1 || (blocks >= FEWEST_BLOCKS && blocks * warps >= 256)) &&
        (rows === 1 || (bm <= TILE * 2 ** Math.ceil(Math.log2(rows)) && RM * RN <= 16 && warps >= 4 && warps <= 8))
      );
    })
    .map((settings) => ({
      T: type,
      N: n,
      K: k,
      GROUPS: k / group,
      ...settings,
      ...(settings.SPLIT === 1 ? {} : { O: 'f32' }),
    }));
}
