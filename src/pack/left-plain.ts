import { escaped, type ModelRoles } from './roles.js';

/** What a configuration must say is not quantized. */
export interface LeftPlain {
  /** Module paths. */
  readonly modules: readonly string[];
  /** Prefixes of the multi-token prediction layers in which nothing is quantized, by the checkpoint's names. */
  readonly layers: readonly string[];
  /** The same as regular expressions, which also match vLLM's names if they differ. */
  readonly patterns: readonly string[];
}

/**
 * Layers of multi-token prediction that stay as they are whole are said by what their names begin with: engines fuse some of their
 * modules, and have names of their own for others.
 */
export function leftPlain(plain: Iterable<string>, quantized: Iterable<string>, roles: ModelRoles): LeftPlain {
  const partly = new Set([...quantized].map((name) => roles.prediction(name)));
  const layers = new Map<string, Set<string>>();
  const modules: string[] = [];
  for (const name of plain) {
    const root = roles.prediction(name);
    if (root === undefined || partly.has(root)) modules.push(name);
    else {
      const names = layers.get(root) ?? new Set([root]);
      layers.set(root, names.add(roles.predictionElsewhere(name) ?? root));
    }
  }
  const patterns = [...layers.values()].map((names) => {
    const each = [...names].map(escaped);
    return each.length > 1 ? `^(${each.join('|')})` : `^${each[0]}`;
  });
  return { modules, layers: [...layers.keys()].sort(), patterns: patterns.sort() };
}
