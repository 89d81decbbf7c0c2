import type { Architecture } from './architecture.js';
import type { WeightShapes } from './source.js';

/** The table with other names in blocks where this checkpoint has those and not the table's, and convolutions cut as it has them. */
export function respelledBlocks(table: Architecture, source: WeightShapes): Architecture {
  const named = renamed(spelledFor(table, source.names()), source);
  const equal = named.recurrent?.mixer.kind === 'delta' && equalConvs(named.recurrent.mixer.names.convs, source);
  if (!equal || named.recurrent?.mixer.kind !== 'delta') return named;
  return { ...named, recurrent: { ...named.recurrent, mixer: { ...named.recurrent.mixer, equalConvs: true } } };
}

/** The table for published checkpoints with these tensors. */
export function spelledFor(table: Architecture, tensors: Iterable<string>): Architecture {
  if (!table.spelled) return table;
  const names = [...tensors];
  const found = table.spelled.find(({ has }) => names.some((name) => name.endsWith(has)));
  return found ? { ...table, ...found.as } : table;
}

function renamed(table: Architecture, source: WeightShapes): Architecture {
  const { respelled = [], ...rest } = table;
  if (respelled.length === 0) return table;
  const names = [...source.names()];
  const has = (module: string) => names.some((name) => name.endsWith(`.${module}.weight`));
  const changes = new Map(respelled.filter(([name, instead]) => !has(name) && has(instead)));
  return changes.size === 0 ? table : { ...replaced(rest, changes), respelled };
}

function replaced<T>(value: T, changes: ReadonlyMap<string, string>): T {
  if (typeof value === 'string') return (changes.get(value) ?? value) as T;
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) return value.map((each) => replaced(each, changes)) as T;
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, replaced(inner, changes)])) as T;
}

/** Whether three convolutions have equal parts of all channels, rounded up, as transformers cuts them, and not those of q, k and v. */
function equalConvs(convs: readonly string[], source: WeightShapes): boolean {
  if (convs.length !== 3) return false;
  const names = [...source.names()];
  const rows = convs.map((conv) => {
    const name = names.find((each) => each.endsWith(`.${conv}.weight`));
    return name === undefined ? 0 : (source.shape(name)[0] ?? 0);
  });
  return rows[0] === rows[1] && rows[0] === Math.ceil(rows.reduce((a, b) => a + b, 0) / 3);
}
