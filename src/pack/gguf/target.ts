import type { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { type GgufName, ggufName } from '../../../formats/gguf/names.js';
import { type GgufTypeName, ggufType, rowBytes } from '../../../formats/gguf/types.js';
import type { Tensor } from '../../../native/binding.js';
import { LpqError } from '../../core/error.js';
import { printGranularity } from '../../core/granularity.js';
import type { Decision, ModuleFacts, PackTarget } from '../target.js';
import { columnsOf, createContext, type GgufContext, halvesOf, headsOf, orderOf } from './context.js';
import { encodeCodes, encodeFours, moduleWeight, searchBlocks, takeColumns } from './encode.js';
import { ownForm } from './forms.js';
import { writeGguf } from './write.js';

/** GGUF of blocks from the codes, or of one searched type. */
export function ggufTarget(search?: GgufTypeName): PackTarget {
  const name = search === undefined ? 'gguf' : `gguf-${search}`;
  const describe =
    search === undefined
      ? 'GGUF for llama.cpp with the same codes: q4_0, q4_1, q5_0, q5_1, q8_0 or mxfp4, if the grids match'
      : `GGUF for llama.cpp, ${search} searched from the weights (of --source, or the quantized ones)`;
  const unbound = (): never => {
    throw new LpqError('LPQ_INTERNAL', `target ${name} was not bound to a checkpoint`);
  };
  return {
    name,
    describe,
    bind: (checkpoint) => bound({ name, describe }, search, checkpoint),
    ...(search === undefined && {
      preview(module, facts) {
        const form = ownForm(module, facts);
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
  return {
    ...about,
    serve: ['llama-server -m DIR/model.gguf'],
    readsSource: search !== undefined,
    plan: (name, module, facts) => decide(context, checkpoint, name, module.shape, facts),

    async pack({ rt, name, module }) {
      const form = context.form(name);
      if ('reason' in form) throw new LpqError('LPQ_INTERNAL', `module '${name}' has no form: ${form.reason}`);
      const place = context.place(name);
      const order = orderOf(context, place, module.shape[0]);
      const chunks = columnsOf(context, place);
      if (form.kind === 'fours')
        return inHalves(place, takeColumns(encodeFours({ checkpoint, name, module }, order), chunks));
      if (form.kind === 'codes')
        return inHalves(place, takeColumns(await encodeCodes({ rt, checkpoint, name, module }, form, order), chunks));
      const weight = takeColumns(await moduleWeight(rt, checkpoint, name, undefined), chunks);
      const { blocks, mean } = await searchBlocks(rt, name, weight, form.type, order);
      for (const tensor of [weight, mean]) tensor.dispose();
      return inHalves(place, blocks);
    },

    // The file's own metadata says everything; config.json is the model's, without a word about quantization.
    config: () => ({ quantization: {}, files: {} }),

    write: (request, plan) => writeGguf(request, plan, context),
  };
}

/** Blocks [N, bytes of a row] by the names that the file has for them. Disposes of `blocks` if they are halves then. */
function inHalves(place: GgufName, blocks: Tensor): Map<string, Tensor> {
  const [n, width] = blocks.shape as [number, number];
  const halves = halvesOf(place, n);
  const parts = halves.map(({ name, rows }, i) => [name, blocks.view([rows, width], i * rows * width)] as const);
  blocks.dispose();
  return new Map(parts);
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
  const heads = headsOf(context, place);
  if (heads !== undefined && n % (heads * 2) !== 0)
    throw new LpqError('LPQ_CONFIG', `${checkpoint.dir}: the rows of '${name}' are not whole heads`, { got: n });
  // Zero points beyond the range of the codes show in the facts alone.
  const own = context.search === undefined ? ownForm(module, facts) : context.form(name);
  if ('reason' in own) return fallback(own.reason, own.remedy);
  if (place.expert !== undefined) {
    const problem = stackProblem(context, checkpoint, place, own.type);
    if (problem) return fallback(problem, 'Quantize all experts of a block alike.');
  }
  const notes: string[] = [];
  if (context.search !== undefined && own.type !== context.search)
    notes.push(`${own.type} instead of ${context.search}, because K = ${k} is not a multiple of 256.`);
  if (own.kind === 'codes' && own.group > 32)
    notes.push(`Its scales of groups of ${printGranularity(module.granularity)} are repeated in every block of 32.`);
  if (own.kind === 'codes' && own.minima) notes.push('The minima, -(zero * scale), are rounded to f16.');
  return {
    action: 'ok',
    layout: `gguf-${own.type}`,
    padded: [n, k],
    tensors: halvesOf(place, n).map(({ name: half, rows }) => ({
      name: half,
      dtype: 'U8',
      shape: [rows, rowBytes(ggufType(own.type), k) as number],
    })),
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
  const siblings = checkpoint
    .moduleNames()
    .filter((each) => ggufName(model.names, `${each}.weight`)?.name === place.name);
  if (siblings.length !== model.experts) return `only ${siblings.length} of its ${model.experts} experts are quantized`;
  for (const sibling of siblings) {
    const other = form(sibling);
    if ('reason' in other) return `its sibling '${sibling}' cannot be stored: ${other.reason}`;
    if (other.type !== type) return `its sibling '${sibling}' is ${other.type} and it is ${type}`;
  }
  return undefined;
}
