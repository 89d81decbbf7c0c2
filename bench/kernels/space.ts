import type { Variant } from './schema.js';

/**
 * A kernel's settings: every combination of the axes' values, but for those that `unless` names. 0 leaves a setting to the
 * library. Settings that a kernel does not have, or that do not fit a product, are refused by the operation and counted.
 */
interface Family {
  readonly fixed: Variant;
  readonly axes: Readonly<Record<string, readonly (number | string)[]>>;
  /** Leaves out combinations that are others again. */
  readonly unless?: (setting: Variant) => boolean;
  /** Most tokens that the family is tried for. */
  readonly most?: number;
  /** Fewest tokens. */
  readonly least?: number;
}

const TILES = { warpsN: [4, 8, 16], warpsK: [1, 2, 4], stages: [3, 4, 6, 8] } as const;
/** The sum of one slice is the same however it is made. */
const singleSlice = ({ slices, reduce }: Variant): boolean => slices === 1 && reduce !== 'global';

/** What `lpq bench kernels --tune` tries: the params of gemm_packed (native/ops.ts). New kernels and values go in here. */
export const SPACE: readonly Family[] = [
  { fixed: { kernel: 'hopper' }, axes: TILES },
  { fixed: { kernel: 'portable' }, axes: TILES, most: 64 },
  {
    fixed: { kernel: 'stream' },
    axes: { slices: [0, 1, 2, 4, 8, 12, 16], reduce: ['global', 'cluster'] },
    unless: singleSlice,
    most: 16,
  },
  {
    // Tokens of a tile, packed blocks of a strip.
    fixed: { kernel: 'wide' },
    axes: { tokens: [0, 16, 32, 64, 128], width: [0, 4, 8, 16], stages: [0, 4, 8], overlap: [0, 1] },
  },
  // It rounds weights, which products of up to 64 tokens do not.
  {
    fixed: { kernel: 'scaled' },
    axes: { tokens: [0, 128, 160, 192, 256], width: [0, 4, 8], stages: [0, 2] },
    least: 65,
  },
  { fixed: { kernel: 'large' }, axes: { tokens: [0, 32, 64, 128] } },
];

/** Every setting for products of `m` tokens. */
export function settings(m: number, space: readonly Family[] = SPACE): Variant[] {
  return space
    .filter(({ most = Number.POSITIVE_INFINITY, least = 1 }) => m >= least && m <= most)
    .flatMap(({ fixed, axes, unless = () => false }) => {
      let list: Variant[] = [fixed];
      for (const [name, values] of Object.entries(axes))
        list = list.flatMap((setting) =>
          values.map((value) => (value === 0 ? setting : { ...setting, [name]: value })),
        );
      return list.filter((setting) => !unless(setting));
    });
}

/** 'stream warps 16 perSm 1': a setting in one line. */
export function settingText(setting: Variant): string {
  const { kernel = 'library', ...rest } = setting;
  return [
    kernel,
    ...Object.entries(rest).map(([name, value]) => (name === 'reduce' ? value : `${name} ${value}`)),
  ].join(' ');
}
