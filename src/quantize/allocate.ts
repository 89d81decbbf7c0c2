/** One way to store a unit: what it costs, and what error it makes. */
export interface Choice<T> {
  readonly value: T;
  /** Bits of all its weights. */
  readonly cost: number;
  readonly error: number;
}

/**
 * Chooses one way for each unit so that the sum of errors is small and that of costs at most `budget`: Lagrange's
 * multiplier first (Everett, Operations Research 11(3), 1963: for some lambda the minimum of error + lambda * cost is
 * optimal for the cost it has), then what is left of the budget is spent where a bit buys most. Undefined: the cheapest
 * ways cost more already. The same numbers give the same choice.
 */
export function allocate<T>(units: readonly (readonly Choice<T>[])[], budget: number): Choice<T>[] | undefined {
  const costOf = (choices: readonly Choice<T>[]) => choices.reduce((sum, { cost }) => sum + cost, 0);
  const at = (lambda: number): Choice<T>[] =>
    units.map((choices) =>
      choices.reduce((best, each) => {
        const [a, b] = [best.error + lambda * best.cost, each.error + lambda * each.cost];
        return b < a || (b === a && each.cost < best.cost) ? each : best;
      }),
    );
  const cheapest = units.map((choices) => choices.reduce((best, each) => (each.cost < best.cost ? each : best)));
  if (costOf(cheapest) > budget) return undefined;
  let chosen = cheapest;
  if (costOf(at(0)) <= budget) chosen = at(0);
  else {
    let [low, high] = [0, 1];
    for (let i = 0; i < 1100 && costOf(at(high)) > budget; i++) high *= 2;
    // Costs are a staircase in lambda: after these halvings the interval is below any step of it.
    for (let i = 0; i < 120; i++) {
      const middle = (low + high) / 2;
      if (costOf(at(middle)) <= budget) high = middle;
      else low = middle;
    }
    if (costOf(at(high)) <= budget) chosen = at(high);
  }
  return spend(units, chosen, budget - costOf(chosen));
}

/** Exchanges single choices while one lowers the error and fits in what is left, the most error for a bit first. */
function spend<T>(units: readonly (readonly Choice<T>[])[], chosen: readonly Choice<T>[], left: number): Choice<T>[] {
  const result = [...chosen];
  for (;;) {
    let best: { unit: number; choice: Choice<T>; gain: number } | undefined;
    for (const [unit, choices] of units.entries()) {
      const now = result[unit] as Choice<T>;
      for (const choice of choices) {
        const more = choice.cost - now.cost;
        if (choice.error >= now.error || more > left) continue;
        const gain = more <= 0 ? Number.POSITIVE_INFINITY : (now.error - choice.error) / more;
        if (!best || gain > best.gain) best = { unit, choice, gain };
      }
    }
    if (!best) return result;
    left -= best.choice.cost - (result[best.unit] as Choice<T>).cost;
    result[best.unit] = best.choice;
  }
}
