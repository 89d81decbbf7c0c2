import type { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { type GgufModel, ggufModel } from '../../../formats/gguf/model-metadata.js';
import { type GgufName, ggufName, rowOrder } from '../../../formats/gguf/names.js';
import { type GgufTypeName, ggufType, rowBytes } from '../../../formats/gguf/types.js';
import { LpqError } from '../../core/error.js';
import { printGranularity } from '../../core/granularity.js';
import type { NoForm } from '../integer-form.js';
import type { Decision, ModuleFacts, PackTarget } from '../target.js';
import { encodeCodes, searchBlocks } from './encode.js';
import { codesForm, type GgufForm, searchForm } from './forms.js';
import { moduleWeight, writeGguf } from './write.js';

/** The model around the modules of a checkpoint, as GGUF sees it. */
export interface GgufContext {
  readonly model: GgufModel;
  /** Searched type of the linears; undefined: blocks from the codes. */
  readonly search: GgufTypeName | undefined;
  form(name: string): GgufForm | NoForm;
  /** Where MODULE.weight goes. Throws LPQ_TARGET for a module without a place. */
  place(name: string): GgufName;
}

const contexts = new WeakMap<PackTarget, GgufContext>();

/** The context of a target that bind() made. */
export function contextOf(target: PackTarget): GgufContext {
  return contexts.get(target) as GgufContext;
}

/** GGUF of blocks from the codes, or of one searched type. */
export function ggufTarget(search?: GgufTypeName): PackTarget {
  const name = search === undefined ? 'gguf' : `gguf-${search}`;
  const describe =
    search === undefined
      ? 'GGUF for llama.cpp from the very codes: q4_0, q4_1, q5_0, q5_1 or q8_0 where the grids coincide'
      : `GGUF for llama.cpp, ${search} found by search in the weights (of --source, or as they were quantized)`;
  const unbound = (): never => {
    throw new LpqError('LPQ_INTERNAL', `target ${name} was not bound to a checkpoint`);
  };
  return {
    name,
    describe,
    bind: (checkpoint) => bound({ name, describe }, search, checkpoint),
    ...(search === undefined && {
      preview(module, facts) {
        const form = codesForm(module, facts);
        return 'reason' in form ? form : undefined;
      },
    }),
    plan: unbound,
    pack: unbound,
    config: unbound,
  };
}

function bound(
  about: Pick<PackTarget, 'name' | 'describe'>,
  search: GgufTypeName | undefined,
  checkpoint: CanonicalCheckpoint,
): PackTarget {
  const context = createContext(search, checkpoint);
  const target: PackTarget = {
    ...about,
    readsSource: search !== undefined,
    plan: (name, module, facts) => decide(context, checkpoint, name, module.shape, facts),

    async pack({ rt, name, module }) {
      const form = context.form(name);
      if ('reason' in form) throw new LpqError('LPQ_INTERNAL', `module '${name}' has no form: ${form.reason}`);
      const place = context.place(name);
      const order = orderOf(context, place, module.shape[0]);
      if (form.kind === 'codes')
        return new Map([[tensorName(place), await encodeCodes({ rt, checkpoint, name, module }, form, order)]]);
      const weight = await moduleWeight(rt, checkpoint, name, undefined);
      const { blocks, mean } = await searchBlocks(rt, name, weight, form.type, order);
      for (const tensor of [weight, mean]) tensor.dispose();
      return new Map([[tensorName(place), blocks]]);
    },

    // The file's own metadata says everything; config.json is the model's, without a word about quantization.
    config: () => ({ quantization: {}, files: {} }),

    write: (request, plan) => writeGguf(request, plan, context),
  };
  contexts.set(target, context);
  return target;
}

function createContext(search: GgufTypeName | undefined, checkpoint: CanonicalCheckpoint): GgufContext {
  const model = ggufModel(checkpoint.dir, checkpoint.config);
  const forms = new Map<string, GgufForm | NoForm>();
  return {
    model,
    search,
    place(name) {
      const found = ggufName(`${name}.weight`);
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
      const form = search === undefined ? codesForm(module, zeros) : searchForm(search, module.shape[1]);
      forms.set(name, form);
      return form;
    },
  };
}

function decide(
  context: GgufContext,
  checkpoint: CanonicalCheckpoint,
  name: string,
  [n, k]: readonly [number, number],
  facts: ModuleFacts,
): Decision {
  const fallback = (reason: string, remedy: string): Decision => ({
    action: 'fallback',
    form: 'dense',
    reason,
    remedy,
  });
  const module = checkpoint.module(name);
  const place = context.place(name);
  if (place.heads && n % (headsOf(context, place) * 2) !== 0)
    throw new LpqError('LPQ_CONFIG', `${checkpoint.dir}: the rows of '${name}' are no whole heads`, { got: n });
  // Zero points beyond the range of the codes show in the facts alone.
  const own = context.search === undefined ? codesForm(module, facts) : context.form(name);
  if ('reason' in own) return fallback(own.reason, own.remedy);
  if (place.expert !== undefined) {
    const problem = stackProblem(context, checkpoint, place, own.type);
    if (problem) return fallback(problem, 'Quantize all experts of a block alike.');
  }
  const notes: string[] = [];
  if (context.search !== undefined && own.type !== context.search)
    notes.push(`${own.type} instead of ${context.search}, because K = ${k} is no multiple of 256.`);
  if (own.kind === 'codes' && own.group > 32)
    notes.push(`Its scales of groups of ${printGranularity(module.granularity)} are repeated in every block of 32.`);
  if (own.kind === 'codes' && own.minima) notes.push('The minima, -(zero * scale), are rounded to f16.');
  return {
    action: 'ok',
    layout: `gguf-${own.type}`,
    padded: [n, k],
    tensors: [{ name: tensorName(place), dtype: 'U8', shape: [n, rowBytes(ggufType(own.type), k) as number] }],
    notes,
  };
}

/** Experts are slices of one tensor, which has one type. */
function stackProblem(
  { model, form }: GgufContext,
  checkpoint: CanonicalCheckpoint,
  place: GgufName,
  type: GgufTypeName,
): string | undefined {
  const siblings = checkpoint.moduleNames().filter((each) => ggufName(`${each}.weight`)?.name === place.name);
  if (siblings.length !== model.experts) return `only ${siblings.length} of its ${model.experts} experts are quantized`;
  for (const sibling of siblings) {
    const other = form(sibling);
    if ('reason' in other) return `its sibling '${sibling}' cannot be stored: ${other.reason}`;
    if (other.type !== type) return `its sibling '${sibling}' is ${other.type} and it is ${type}`;
  }
  return undefined;
}

export function tensorName({ name, expert }: GgufName): string {
  return expert === undefined ? name : `${name}[${expert}]`;
}

/** The rows of a module in the order of the file. */
export function orderOf(context: GgufContext, place: GgufName, rows: number): Int32Array {
  const permuted = place.heads !== undefined && context.model.architecture.interleaved;
  return rowOrder(rows, permuted ? headsOf(context, place) : undefined);
}

function headsOf({ model }: GgufContext, { heads }: GgufName): number {
  return heads === 'q' ? model.heads : model.kvHeads;
}
