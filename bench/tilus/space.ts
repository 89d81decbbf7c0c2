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
/** Of one row of tiles: slices of K in a block, or many parts of K in blocks of their own. */
const FEW = [
  { WN: [1, 2, 4], WK: [2, 4, 8], RN: [1, 2, 4], RK: [2, 4], STAGES: [2, 3, 4], SPLIT: [1, 2] },
  { WN: [4, 8], WK: [1], RN: [1, 2], RK: [4, 8], STAGES: [3, 4], SPLIT: [4, 8] },
];

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

function matmulSpace(point: ProgramPoint): Settings[] {
  const { type, k, n } = point;
  const group = point.group === 0 ? k : point.group;
  const found = point.m <= TILE ? fewTokens({ ...point, group }) : manyTokens({ ...point, group });
  const constants = { T: type, N: n, K: k, GROUPS: k / group };
  return found.map((settings) => ({ ...constants, ...settings, ...(settings.SPLIT === 1 ? {} : { O: 'f32' }) }));
}

/** Groups end where slices of steps do, and steps are whole. */
function fits({ k, n, group }: ProgramPoint, slice: number, bk: number, bn: number, steps: number): boolean {
  const whole = n % bn === 0 && Number.isInteger(steps) && k % group === 0 && group % slice === 0;
  return whole && (group % bk === 0 || bk % group === 0);
}

function fewTokens(point: ProgramPoint): Settings[] {
  const { k, n } = point;
  return FEW.flatMap((values) => combinations({ WM: [1], RM: [1], ...values })).filter((settings) => {
    const { WN, WK, RN, RK, STAGES, SPLIT } = settings as Record<keyof (typeof FEW)[number], number>;
    const [bn, slice] = [8 * WN * RN, TILE * RK];
    const steps = k / (slice * WK) / SPLIT;
    const blocks = (n / bn) * SPLIT;
    if (!fits(point, slice, slice * WK, bn, steps) || steps < STAGES) return false;
    return WN * WK >= 4 && WN * WK <= 16 && blocks >= FEWEST_BLOCKS && blocks <= MOST_BLOCKS;
  });
}

function manyTokens(point: ProgramPoint): Settings[] {
  const { k, m } = point;
  const most = TILE * 2 ** Math.ceil(Math.log2(m / TILE));
  const warps = { WM: [1, 2, 4], RM: [1, 2, 4, 8], WN: [2, 4, 8], WK: [1] };
  const values = { ...warps, RN: [1, 2, 4], RK: [2, 4], STAGES: [2, 3, 4], SPLIT: [1] };
  return combinations(values).filter((settings) => {
    const { WM, RM, WN, RN, RK, STAGES } = settings as Record<keyof typeof values, number>;
    const bk = TILE * RK;
    const count = WM * WN;
    const tile = TILE * WM * RM;
    if (!fits(point, bk, bk, 8 * WN * RN, k / bk) || k / bk < STAGES) return false;
    return count >= 4 && count <= 8 && tile <= most && 4 * tile >= Math.min(most, 512) && RM * RN >= 4 && RM * RN <= 16;
  });
}
