import { decodePart, decodeTileModule } from './decode-tiles.js';
import type { VerifiedLayout } from './layout.js';
import { type TileRules, tileProblems } from './tile-rules.js';

/** A layout of fragments, whose tensors a module has once, or once for each rank that shares it. */
export function tileLayout(rules: TileRules): VerifiedLayout {
  const { name, codes, activations, emulator, kernel } = rules;
  return {
    name,
    problems: (module) => tileProblems(rules, module),
    tensors: (module) => rules.tensors(module),
    decode: (...args) => decodeTileModule(rules, ...args),
    tiles: { codes, decodePart: (...args) => decodePart(rules, ...args), emulator },
    ...(activations && { activations }),
    ...(kernel && { kernel }),
  };
}
