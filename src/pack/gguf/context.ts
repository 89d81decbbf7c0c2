import type { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { type GgufName, ggufName, halvesOrder, partOrder, rowOrder } from '../../../formats/gguf/names.js';
import { stateOrder } from '../../../formats/gguf/states.js';
import type { GgufTypeName } from '../../../formats/gguf/types.js';
import { LpqError } from '../../core/error.js';
import { attentions, mixers } from '../../model/gguf/facts.js';
import { type GgufModel, ggufModel } from '../../model/gguf/model.js';
import type { NoForm } from '../integer-form.js';
import { type GgufForm, ownForm, searchForm } from './forms.js';

/** The model around the modules of a checkpoint, as GGUF sees it. */
export interface GgufContext {
  readonly model: GgufModel;
  /** Searched type of the linears; undefined: blocks from the codes. */
  readonly search: GgufTypeName | undefined;
  form(name: string): GgufForm | NoForm;
  /** Where MODULE.weight goes. Throws LPQ_TARGET for a module without a place. */
  place(name: string): GgufName;
}

export function createContext(search: GgufTypeName | undefined, checkpoint: CanonicalCheckpoint): GgufContext {
  const model = ggufModel(checkpoint.dir, checkpoint.config, namesIn(checkpoint));
  const forms = new Map<string, GgufForm | NoForm>();
  return {
    model,
    search,
    place(name) {
      const found = ggufName(model.names, `${name}.weight`);
      if (found) return found;
      throw new LpqError('LPQ_TARGET', `module '${name}' of ${checkpoint.dir} has no place in GGUF`, {
        hint: 'Leave it unquantized with a recipe rule, or pack for compressed-tensors.',
      });
    },
    form(name) {
      const known = forms.get(name);
      if (known) return known;
      const module = checkpoint.module(name);
      const zeros = module.zeros.kind === 'int' ? { zeroRange: [0, 0] as const } : {};
      const form = search === undefined ? ownForm(module, zeros) : searchForm(search, module.shape[1]);
      forms.set(name, form);
      return form;
    },
  };
}

/** Names of a checkpoint's tensors, modules by that of their weight. */
function namesIn(checkpoint: CanonicalCheckpoint) {
  const names = new Set(checkpoint.moduleNames().map((name) => `${name}.weight`));
  for (const name of Object.keys(checkpoint.manifest.carried)) names.add(name);
  return { names: () => names, has: (name: string) => names.has(name) };
}

export function tensorName({ name, expert }: GgufName): string {
  return expert === undefined ? name : `${name}[${expert}]`;
}

/** The tensors of a matrix in the file: it, or the halves of its rows; `n`: rows of the matrix. */
export function halvesOf(place: GgufName, n: number): readonly { readonly name: string; readonly rows: number }[] {
  const name = tensorName(place);
  if (place.second === undefined) return [{ name, rows: n }];
  return [name, place.second].map((half) => ({ name: half, rows: n / 2 }));
}

/** The rows of a module in the order of the file. */
export function orderOf(context: GgufContext, place: GgufName, rows: number): Int32Array {
  const states = statesOf(context);
  if (states && (place.states === 'rows' || place.states === 'behind'))
    return stateOrder(
      rows,
      states.heads,
      states.keyHeads,
      place.states === 'behind' ? 2 * states.keyHeads * states.keyDim : 0,
    );
  const heads = headsOf(context, place);
  if (place.fix === 'heads' && heads !== undefined) return partOrder(rows, heads);
  if (place.fix === 'halved-q' || place.fix === 'halved-k') return halvesOrder(rows, heads ?? 1, rotaryOf(context));
  return rowOrder(rows, heads);
}

/** The heads of a gated delta rule, if several share keys. */
function statesOf({ model }: GgufContext) {
  const core = mixers(model.plan)[0]?.[1].core;
  return core?.kind === 'delta' && core.heads !== core.keyHeads ? core : undefined;
}

/** Chunk i of every row of the file is chunk order[i] of the module; undefined where columns keep their places. */
export function columnsOf(context: GgufContext, place: GgufName): Int32Array | undefined {
  const states = place.states === 'columns' ? statesOf(context) : undefined;
  return states && stateOrder(states.heads, states.heads, states.keyHeads);
}

/** How many heads the rows of a tensor are, which lie in another order in the file. */
export function headsOf({ model }: GgufContext, { fix }: GgufName): number | undefined {
  const { heads = 1, kvHeads = 1 } = attentions(model.plan)[0]?.[1] ?? {};
  if (fix === 'interleaved-k' || fix === 'halved-k') return kvHeads;
  return fix === 'interleaved-q' || fix === 'halved-q' || fix === 'heads' ? heads : undefined;
}

/** How many elements of a head turn. */
const rotaryOf = ({ model }: GgufContext): number => attentions(model.plan)[0]?.[1].rope?.rotary ?? 0;
