/**
 * JSON as Python writes it has infinities and NaN, which JSON has not (time_step_limit of state spaces). Bare ones become the objects that
 * transformers 5 writes for them, {"__float__": "Infinity"}; all other text stays.
 */
export function withoutBareFloats(text: string): string {
  return text.replace(/"(?:[^"\\]|\\.)*"|-?\bInfinity\b|\bNaN\b/g, (found) =>
    found.startsWith('"') ? found : `{"__float__": "${found}"}`,
  );
}
