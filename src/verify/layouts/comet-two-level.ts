import { typed } from '../../../native/binding.js';
import { tileLayout } from '../decode-tiles.js';
import { partGroups, type TileRules } from '../tile-rules.js';
import { cometEmulator, cometProblems, cometRules } from './comet.js';
import { turned, twoLevelProducts, twoLevelTensors } from './w4a8.js';

/** W4Ax of a two-level grid: the weights of layout w4a8, the activations of layout comet. */
const rules: TileRules = {
  ...cometRules,
  name: 'comet_two_level',

  scales(module) {
    const groups = partGroups(module);
    return { name: 'group_scales', form: 'comet', dtype: 'I8', groups, padded: groups };
  },

  tensors(module) {
    const [, , ...activations] = cometRules.tensors(module);
    return [...twoLevelTensors(module), ...activations];
  },

  *problems(module) {
    yield* cometProblems('comet_two_level', module);
    if (!module.scales.twoLevel) yield 'layout comet_two_level has scales of two levels';
  },

  async takeScales(part, read, parts) {
    const products = twoLevelProducts(part, typed<Int8Array>(read.scales.output));
    read.scales.output.dispose();
    await cometRules.takeScales!(part, { ...read, scales: { ...read.scales, output: products } }, parts);
  },

  emulator: cometEmulator((_weights, _prefix, module, wide) =>
    turned(typed<Float32Array>(wide), partGroups(module), module.padded[0]),
  ),
};

export const cometTwoLevel = tileLayout(rules);
