import type { PackedModule } from '../../../formats/artifact/schema.js';
import type { TensorReader } from '../../../formats/safetensors/read.js';
import type { Tensor } from '../../../native/binding.js';
import { cometKernel } from '../../model/kernels/comet.js';
import { checkActivations, wideScales } from '../decode-comet.js';
import { storedScales } from '../decode-scales.js';
import { tileLayout } from '../decode-tiles.js';
import { compareComet } from '../kernel-comet.js';
import type { Emulator } from '../layout.js';
import { emulate } from '../native.js';
import { orderTensor, partGroups, partShape, rankPrefixes, type TileRules } from '../tile-rules.js';

/** Integer sums must be exact (native/cpu/verify/emulate_comet.cpp). `scalesOf`: those of a part, f32 [K/128, N']. */
export const cometEmulator = (
  scalesOf: (weights: TensorReader, prefix: string, module: PackedModule, wide: Tensor) => Tensor,
): Emulator => ({
  strip: () => 16,
  async run({ runtime, weights, seed }, { prefix, module, parts, strips }) {
    const scales = await wideScales(runtime, parts.get('scales')!);
    const stored = (suffix: string): Tensor => weights.tensor(`${prefix}.${suffix}`);
    const own = [
      stored('packed'),
      scalesOf(weights, prefix, module, scales),
      ...['bits', 'clip', 'blocks'].map(stored),
    ];
    const permutation = parts.get('permutation');
    const inputs = [...own, parts.get('codes')!, scales, ...(permutation ? [permutation] : [])];
    const result = await emulate(runtime, 'comet', inputs, { seed, strips });
    for (const tensor of [...own, scales]) tensor.dispose();
    return result;
  },
  wrong: ({ row, column, got, expected, count }) =>
    `the emulated kernel's sum of the block of row ${row} at column ${column} is ${got}, not ${expected} (${count} such sums)`,
});

/** W4Ax: codes that are multiplied with codes. */
export const cometRules: TileRules = {
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

  problems: (module) => cometProblems('comet', module),

  async takeScales({ rt, weights, name, prefix, module, decoded }, read, parts) {
    parts.set('scales', await storedScales(rt, read.name, module, decoded, read.scales.output));
    checkActivations(weights, prefix, module, rankPrefixes(name, module).indexOf(prefix), decoded);
  },

  emulator: cometEmulator((weights, prefix) => weights.tensor(`${prefix}.scales`)),

  kernel: { binds: cometKernel, compare: compareComet },
};

export const comet = tileLayout(cometRules);

/** What a module has that layout `name` does not take. */
export function* cometProblems(name: string, module: PackedModule): Generator<string> {
  const { activations, canonical, granularity, scales, type, zeros } = module;
  const [n, k] = partShape(module);
  if (type !== 'i4') yield `layout ${name} has no ${type} codes`;
  if (zeros.kind !== 'none') yield `layout ${name} has no zero points`;
  if (granularity.kind !== 'group' || granularity.size !== 128) yield `layout ${name} has only groups of 128`;
  if (!['f16', 'bf16', 'f32'].includes(scales.dtype)) yield `layout ${name} has no ${scales.dtype} scales`;
  if (canonical.g_idx !== undefined) yield `layout ${name} has no g_idx`;
  if (module.padded[1] !== k || module.padded[0] >= n + 16)
    yield `layout ${name} pads N to a multiple of 16, and does not pad K`;
  if (!activations) yield `layout ${name} needs the precisions of activations`;
}
