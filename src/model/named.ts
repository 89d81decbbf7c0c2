import type { Architecture } from './architecture.js';
import { respelledBlocks } from './respelled.js';
import type { WeightShapes } from './source.js';

/** The table with the names that this checkpoint has, where it is spelled in another way than the class does. */
export function asNamed(architecture: Architecture, source: WeightShapes): Architecture {
  const table = respelledBlocks(architecture, source);
  const { variants = [], ...names } = table.names;
  const spellings = [names, ...variants.map((variant) => respelled(names, variant))];
  const found = spellings.find((each) => holds(source, each)) ?? names;
  const head = source.has(`${found.head}.weight`) ? found.head : names.head;
  if (found === names && table.text === undefined) return table;
  // Loaders take a head that is stored, whatever a model of more than text says of its embedding.
  const tied = table.text !== undefined && source.has(`${head}.weight`) ? false : table.tied;
  return { ...table, tied, names: { ...found, head, variants } };
}

type Names = Omit<Architecture['names'], 'variants'>;

function respelled(names: Names, variant: NonNullable<Architecture['names']['variants']>[number]): Names {
  const { prefix, instead, block, head } = variant;
  const moved = Object.fromEntries(
    Object.entries(names).map(([key, name]) => [
      key,
      name.startsWith(prefix) ? instead + name.slice(prefix.length) : name,
    ]),
  ) as unknown as Names;
  return { ...moved, ...(block !== undefined && { block }), ...(head !== undefined && { head }) };
}

/** Whether a checkpoint has the embedding and something of the first block where these names say. */
function holds(source: WeightShapes, { embedding, block }: Names): boolean {
  if (!source.has(`${embedding}.weight`)) return false;
  const first = block.replace('{layer}', '0');
  for (const name of source.names()) if (name.startsWith(first)) return true;
  return false;
}

/**
 * The path of a module of the language model in every spelling that its checkpoints and the programs that load them have, its own
 * first; only its own where the table is for text alone.
 */
export function spellings(table: Architecture, module: string): string[] {
  const bases = basesOf(table);
  const base = bases.find((each) => module.startsWith(each));
  if (base === undefined) return [module];
  return [...new Set([base, ...bases])].map((each) => each + module.slice(base.length));
}

/** Whether a module is none of the language model's: part of a tower or a projector in a model of more than text. */
export function isBeside(table: Architecture, module: string): boolean {
  const { text, names } = table;
  if (!text) return false;
  const inside = basesOf(table).flatMap((base) =>
    // Towers may stand below 'model.', too.
    base === 'model.'
      ? [names.embedding, names.finalNorm, blocksOf(names.block)].map((path) => base + last(path))
      : [base],
  );
  return !inside.some((path) => module.startsWith(path));
}

const blocksOf = (block: string) => block.replace(/\.\{layer\}.*$/, '');
const last = (path: string) => path.slice(path.lastIndexOf('.') + 1);

/** Paths of the base language model in a model of more than text, the longest first; 'language_model.model.' is vLLM's of all. */
function basesOf({ text, names }: Architecture): string[] {
  if (!text) return [];
  const own = names.embedding.replace(/[^.]+$/, '');
  const bases = [own, ...(names.variants ?? []).map(({ instead }) => instead), 'language_model.model.'];
  return [...new Set(bases)].sort((a, b) => b.length - a.length);
}
