import type { PackedModule } from '../../formats/artifact/schema.js';
import { quantType } from '../core/quant-type.js';

/** Of layouts of other programs that have every column in place. */
export function* inPlaceProblems(layout: string, { canonical }: PackedModule): Generator<string> {
  for (const part of ['g_idx', 'permutation', 'mask'] as const)
    if (canonical[part] !== undefined) yield `layout ${layout} has no ${part}`;
}

/** Of compressed-tensors' forms that say which types of codes they have. */
export function* codeProblems(layout: string, module: PackedModule, types: readonly string[]): Generator<string> {
  yield* inPlaceProblems(layout, module);
  const { name } = quantType(module.type);
  if (!types.includes(name)) yield `layout ${layout} has no ${name} codes`;
}
