import { quantType } from '../../core/quant-type.js';
import { sparseMarlinKernel } from '../../model/kernels/sparse-marlin.js';
import { problem } from '../decode-scales.js';
import { tileLayout } from '../decode-tiles.js';
import { decodeSparse } from '../native.js';
import { integerProblems, orderProblems, partGroups, partShape, type TileRules, tileCodes } from '../tile-rules.js';

const rules: TileRules = {
  name: 'sparse_marlin',
  steps: [256, 128],
  codes: 'B',
  unsigned: true,
  middle: true,
  rows: true,
  sparse: true,
  form: () => 'sparse_marlin',

  scales: (module) => ({
    ...{ name: 's', form: 'sparse_marlin_scales', dtype: 'F16' },
    groups: partGroups(module),
    padded: partGroups(module, module.padded[1]),
  }),

  tensors(module) {
    const [np, kp] = module.padded;
    return [
      { suffix: 'B', dtypes: ['I32'], shape: [kp / 32, (np * quantType(module.type).bits) / 2] },
      { suffix: 'meta', dtypes: ['I16'], shape: [kp / 32, 2 * np] },
      { suffix: 's', dtypes: ['F16'], shape: [rules.scales(module).padded, np] },
    ];
  },

  *problems(module) {
    const { canonical, granularity } = module;
    const type = quantType(module.type);
    if (canonical.mask === undefined) yield 'layout sparse_marlin needs a 2:4 mask';
    if (partShape(module)[1] % 4 !== 0) yield 'layout sparse_marlin needs a multiple of 4 input features';
    if (granularity.kind === 'group' && granularity.size !== 128)
      yield `layout sparse_marlin has no groups of ${granularity.size}`;
    if (tileCodes(rules, module).zero !== 2 ** (type.bits - 1)) yield 'layout sparse_marlin has no zero points';
    if (type.kind === 'int') yield* integerProblems(rules, module);
    else yield `layout sparse_marlin holds integers, not ${type.name}`;
    yield* orderProblems(rules, module);
  },

  /** Codes of all K and the mask, from kept codes and metadata. */
  codesOf({ rt, weights, prefix, decoded }, packed, shape) {
    const meta = weights.tensor(`${prefix}.meta`);
    const codes = decodeSparse(rt, packed, meta, shape);
    meta.dispose();
    return {
      codes,
      take(parts) {
        const order = 'the metadata of a four does not name two places in ascending order';
        problem(decoded, `${prefix}.meta`, order, codes.places());
        parts.set('mask', codes.mask);
      },
    };
  },

  /** The metadata selects of each four activations the two that the kept weights meet. */
  emulator: () => ({ program: 'sparse_marlin' }),

  kernel: { binds: sparseMarlinKernel, rounds: true },
};

export const sparseMarlin = tileLayout(rules);
