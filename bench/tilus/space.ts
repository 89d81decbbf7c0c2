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
/** Fewer blocks leave most of a device idle; more have too little to do each. */
const [FEWEST_BLOCKS, MOST_BLOCKS] = [60, 4000];
/** For products of one row of tiles, and of more. */
const FEW = { RN: [1, 2, 4], RK: [2, 4], STAGES: [2, 3, 4], SPLIT: [1, 2] };
const MANY = { RN: [1, 2, 4], RK: [2, 4], STAGES: [2, 3, 4], SPLIT: [1] };

/** Programs that compute products, and the configurations of each that are worth timing. */
export const SPACES = { matmul: matmulSpace, hopper: hopperSpace } as const;
export type SpaceName = keyof typeof SPACES;

/** Tiles of tokens, stages and parts of K; the program has one scale for each row of W. */
function hopperSpace({ type, k, n, m }: ProgramPoint): Settings[] {
  const most = Math.max(8, 2 ** Math.ceil(Math.log2(m)));
  const values = { BM: [8, 16, 32, 64, 128, 256], RK: [1, 2, 4], STAGES: [2, 3, 4, 6], SPLIT: [1, 2, 4, 8] };
  return combinations(values)
    .filter((settings) => {
      const { BM, RK, STAGES, SPLIT } = settings as Record<keyof typeof values, number>;
      const steps = k / (64 * RK * SPLIT);
      const blocks = (n / 64) * Math.ceil(m / BM) * SPLIT;
      const fits = BM <= most && 4 * BM >= most && Number.isInteger(steps) && steps >= STAGES;
      return fits && blocks <= 2048 && (SPLIT === 1 || blocks >= FEWEST_BLOCKS);
    })
    .map((settings) => ({ T: type, N: n, K: k, ...settings, ...(settings.SPLIT === 1 ? {} : { O: 'f32' }) }));
}

/** Tiles, stages and parts of K that are worth timing for a product: about 200, most of which a device has room for. */
function matmulSpace(point: ProgramPoint): Settings[] {
  const { type, k, n, m } = point;
  const group = point.group === 0 ? k : point.group;
  const rows = Math.ceil(m / TILE);
  const values =
    rows <= 1
      ? { ...{ WM: [1], RM: [1], WN: [1, 2, 4], WK: [2, 4, 8] }, ...FEW }
      : { ...{ WM: [1, 2, 4], RM: [1, 2, 4, 8], WN: [2, 4, 8], WK: [1] }, ...MANY };
  return combinations(values)
    .filter((settings) => {
      const { WM, RM, WN, WK, RN, RK, STAGES, SPLIT } = settings as Record<keyof typeof values, number>;
      const [bm, bn, slice] = [TILE * WM * RM, 8 * WN * RN, TILE * RK];
      const bk = slice * WK;
      const steps = k / bk / SPLIT;
      const blocks = Math.ceil(m / bm) * (n / bn) * SPLIT;
      const warps = WM * WN * WK;
      const fits = n % bn === 0 && Number.isInteger(steps) && steps >= STAGES && group % slice === 0;
      if (!fits || (group % bk !== 0 && bk % group !== 0)) return false;
      if (rows <= 1) return warps >= 4 && warps <= 16 && blocks >= FEWEST_BLOCKS && blocks <= MOST_BLOCKS;
      return warps >= 4 && warps <= 8 && bm <= TILE * 2 ** Math.ceil(Math.log2(rows)) && RM * RN <= 16;
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
