/** What vLLM makes one linear of, and what it calls that. */
const FUSED: readonly (readonly [whole: string, parts: readonly string[]])[] = [
  ['qkv_proj', ['q_proj', 'k_proj', 'v_proj']],
  ['gate_up_proj', ['gate_proj', 'up_proj']],
];

/**
 * The name that vLLM asks for instead of a linear's own: that of the linear which it fuses it into, or of the experts of a block, where
 * `ruleOf` gives all of those together the one rule. Undefined where it asks for the linear, or its parts have different rules.
 */
export function fusedName(name: string, ruleOf: ReadonlyMap<string, string>): string | undefined {
  const experts = /^(.*\.experts)\.\d+\./.exec(name)?.[1];
  if (experts !== undefined) {
    const rules = [...ruleOf].flatMap(([each, rule]) => (each.startsWith(`${experts}.`) ? [rule] : []));
    return new Set(rules).size === 1 ? experts : undefined;
  }
  const cut = name.lastIndexOf('.') + 1;
  const found = FUSED.find(([, parts]) => parts.includes(name.slice(cut)));
  if (!found) return undefined;
  const [whole, parts] = found;
  const rules = parts.map((part) => ruleOf.get(name.slice(0, cut) + part)).filter((rule) => rule !== undefined);
  return new Set(rules).size === 1 ? name.slice(0, cut) + whole : undefined;
}
