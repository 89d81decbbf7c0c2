import type { GgufArchitecture } from './architectures/architecture.js';

/** A tensor of one number, which the file has in a list with those of all blocks. */
export interface Scalar {
  /** In the checkpoint. */
  readonly name: string;
  readonly shape: readonly number[];
}

/** Those of a model by the keys of their lists, block by block. */
export function scalarsOf(
  { blocks, scalars = {} }: GgufArchitecture,
  layers: number,
): readonly (readonly [key: string, list: readonly Scalar[]])[] {
  return Object.entries(scalars).map(([key, { to, shape }]) => [
    key,
    Array.from({ length: layers }, (_, layer) => ({ name: `${blocks}.${layer}.${to}`, shape })),
  ]);
}

/** Their names. */
export const scalarNames = (architecture: GgufArchitecture, layers: number): ReadonlySet<string> =>
  new Set(scalarsOf(architecture, layers).flatMap(([, list]) => list.map(({ name }) => name)));
