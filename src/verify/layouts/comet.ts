import { cometKernel } from '../../model/kernels/comet.js';
import { checkActivations, wideScales } from '../decode-comet.js';
import { storedScales } from '../decode-scales.js';
import { tileLayout } from '../decode-tiles.js';
import { compareComet } from '../kernel-comet.js';
import { emulate } from '../native.js';
import { orderTensor, partGroups, partShape, rankPrefixes, type TileRules } from '../tile-rules.js';

/** W4Ax: codes that are multiplied with codes. */
const rules: TileRules = {
  name: 'comet',
  steps: [16, 128],
  codes: 'packed',
  rows: true,
  activations: true,
  form: () => 'comet',

  scales(module) {
    const groups = partGroups(module);
    return { name: 'scales', form: 'comet', dtype: 'F32', groups, padded: groups };
  },

  tensors(module) {
    const [np, kp] = module.padded;
    const blocks = kp / 128;
    return [
      { suffix: 'packed', dtypes: ['U8'], shape: [np / 16, blocks, 1024] },
      { suffix: 'scales', dtypes: ['F32'], shape: [blocks, np] },
      { suffix: 'bits', dtypes: ['U8'], shape: [blocks] },
      { suffix: 'clip', dtypes: ['F32'], shape: [blocks] },
      { suffix: 'blocks', dtypes: ['I32'], shape: [blocks] },
      ...orderTensor(module),
    ];
  },

  *problems(module) {
    const { activations, canonical, granularity, scales, type, zeros } = module;
    const [n, k] = partShape(module);
    if (type !== 'i4') yield `layout comet has no ${type} codes`;
    if (zeros.kind !== 'none') yield 'layout comet has no zero points';
    if (granularity.kind !== 'group' || granularity.size !== 128) yield 'layout comet has only groups of 128';
    if (!['f16', 'bf16', 'f32'].includes(scales.dtype)) yield `layout comet has no ${scales.dtype} scales`;
    if (canonical.g_idx !== undefined) yield 'layout comet has no g_idx';
    if (module.padded[1] !== k || module.padded[0] >= n + 16)
      yield 'layout comet pads N to a multiple of 16, and does not pad K';
    if (!activations) yield 'layout comet needs the precisions of activations';
  },

  async takeScales({ rt, weights, name, prefix, module, decoded }, read, parts) {
    parts.set('scales', await storedScales(rt, read.name, module, decoded, read.scales.output));
    checkActivations(weights, prefix, module, rankPrefixes(name, module).indexOf(prefix), decoded);
  },

  /** Integer sums must be exact (native/cpu/verify/emulate_comet.cpp). */
  emulator: {
    strip: () => 16,
    async run({ runtime, weights, seed }, { prefix, parts, strips }) {
      const scales = await wideScales(runtime, parts.get('scales')!);
      const own = ['packed', 'scales', 'bits', 'clip', 'blocks'].map((suffix) => weights.tensor(`${prefix}.${suffix}`));
      const permutation = parts.get('permutation');
      const inputs = [...own, parts.get('codes')!, scales, ...(permutation ? [permutation] : [])];
      const result = await emulate(runtime, 'comet', inputs, { seed, strips });
      for (const tensor of [...own, scales]) tensor.dispose();
      return result;
    },
    wrong: ({ row, column, got, expected, count }) =>
      `the emulated kernel's sum of the block of row ${row} at column ${column} is ${got}, not ${expected} (${count} such sums)`,
  },

  kernel: { binds: cometKernel, compare: compareComet },
};

export const comet = tileLayout(rules);
