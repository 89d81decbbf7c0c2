/** The linears that vLLM fuses into one, and the name of the fused linear. */
const FUSED: readonly (readonly [whole: string, parts: readonly string[]])[] = [
  ['qkv_proj', ['q_proj', 'k_proj', 'v_proj']],
  ['gate_up_proj', ['gate_proj', 'up_proj']],
];

/**
 * The name that vLLM looks up instead of a linear's own: that of the fused linear, or of the experts of a block, if `ruleOf` gives all parts
 * the same rule. Undefined if vLLM looks up the linear itself, or if the parts have different rules.
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
