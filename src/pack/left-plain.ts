import type { ModelRoles } from './roles.js';

/** What a configuration must say is not quantized. */
export interface LeftPlain {
  /** Module paths. */
  readonly modules: readonly string[];
  /** What all modules of a layer of multi-token prediction begin with in which nothing is quantized. */
  readonly layers: readonly string[];
}

/**
 * Layers of multi-token prediction that stay as they are whole are said by what their names begin with: engines fuse some of their
 * modules, and have names of their own for others.
 */
export function leftPlain(plain: Iterable<string>, quantized: Iterable<string>, roles: ModelRoles): LeftPlain {
  const partly = new Set([...quantized].map((name) => roles.prediction(name)));
  const layers = new Set<string>();
  const modules: string[] = [];
  for (const name of plain) {
    const root = roles.prediction(name);
    if (root === undefined || partly.has(root)) modules.push(name);
    else layers.add(root);
  }
  return { modules, layers: [...layers].sort() };
}
