import { dtypeFacts } from '../../safetensors/dtypes.js';
import type { TensorEntry } from '../../safetensors/header.js';
import type { GgufArchitecture } from '../architectures/architecture.js';
import type { Fix, PartName } from '../architectures/parts.js';
import { PER_LAYER_ROWS } from '../names.js';
import type { GgufFacts } from './facts.js';
import { badGguf, type GgufModelFile, type GgufPart, type GgufTensor } from './file.js';
import { type LatentHalves, latentHalf, latentPlace } from './latent.js';
import type { GgufSourceModel } from './model.js';

type Placed = GgufTensor & { readonly part: GgufPart };

/** A tensor of the checkpoint: what of the file it is made from, and how. */
export interface Place {
  readonly entry: TensorEntry;
  readonly from: Placed;
  /** Where its bytes begin in the file, and how many there are. */
  readonly position: number;
  readonly bytes: number;
  readonly fix: Fix | undefined;
  readonly minusOne: boolean;
  readonly states?: PartName['states'];
  /** The file has -exp of its numbers. */
  readonly minusExp?: boolean;
  /** Of a matrix in halves of its rows: which it is; or both of them. */
  readonly half?: PartName['half'];
  readonly rows?: readonly [first: Place, second: Place];
  /** It is made of these two instead. */
  readonly halves?: LatentHalves;
}

/** Tensors that config.json has in words. */
const SPENT = /^rope_(freqs|factors_long|factors_short)\.weight$|\.(attn_rot_embd|rope_freqs)(\.weight)?$/;

/** The tensors of a model by their names in its checkpoint. Throws LPQ_GGUF for a tensor that has no place in it. */
export function placesOf(file: GgufModelFile, model: GgufSourceModel): Map<string, Place> {
  const places = new Map<string, Place>();
  const halves = new Map<string, Partial<LatentHalves>>();
  const apart = new Map<string, Place>();
  const put = (place: Place): void => {
    const { name } = place.entry;
    if (places.has(name)) badGguf(file.path, `two of its tensors are '${name}'`, { got: place.from.name });
    places.set(name, place);
  };
  for (const tensor of file.tensors.values()) {
    if (SPENT.test(tensor.name)) continue;
    const half = latentHalf(tensor.name, model.architecture);
    if (half) halves.set(half.layer, { ...halves.get(half.layer), [half.half]: tensor });
    else
      for (const place of placesFor(file, model, tensor))
        if (place.half) apart.set(`${place.entry.name} ${place.half}`, place);
        else put(place);
  }
  for (const [layer, both] of halves) put(latentPlace(file, model, layer, both));
  for (const place of apart.values()) {
    const { name } = place.entry;
    if (!places.has(name)) put(bothHalves(file, apart.get(`${name} first`), apart.get(`${name} second`), name));
  }
  return places;
}

/** A matrix of which the file has the halves of its rows. */
function bothHalves(file: GgufModelFile, first: Place | undefined, second: Place | undefined, name: string): Place {
  const [a, b] = [first?.entry, second?.entry];
  if (!first || !second || !a || !b || `${a.dtype} ${a.shape}` !== `${b.dtype} ${b.shape}`)
    return badGguf(file.path, `it lacks a half of '${name}', or has halves that do not match`, {
      got: `${a ? `${a.dtype} [${a.shape}]` : 'nothing'} and ${b ? `${b.dtype} [${b.shape}]` : 'nothing'}`,
    });
  const [rows = 0, ...rest] = a.shape;
  const { half: _, ...place } = first;
  return { ...place, entry: { ...a, shape: [2 * rows, ...rest], end: 2 * a.end }, rows: [first, second] };
}

/** One, or one for each expert of a stack. */
function placesFor(file: GgufModelFile, { architecture, config, facts }: GgufSourceModel, tensor: Placed): Place[] {
  const found = checkpointPlace(architecture, tensor.name);
  if (!found)
    return badGguf(file.path, `tensor '${tensor.name}' has no place in a model of type ${config.model_type}`, {
      hint: 'Start from the safetensors that it was converted from.',
    });
  const { to, fix, expert, minusExp = false, plain, states, half, padded } = found;
  const stacked = to.includes('{expert}') && expert === undefined;
  const rank = tensor.shape.length;
  if (rank === 3 && !stacked) badGguf(file.path, `tensor '${tensor.name}' has 3 dimensions`, { got: tensor.shape });
  const slices = stacked ? (tensor.shape[0] as number) : 1;
  const whole = stacked ? tensor.shape.slice(1) : tensor.shape;
  const own = padded ? [rowsOf(file, facts, tensor), ...whole.slice(1)] : whole;
  const shape = checkpointShape(fix, own);
  const { holds } = tensor.type;
  const dtype = typeof holds === 'string' ? holds : 'F32';
  const minusOne = architecture.normsPlusOne === true && !plain && to.endsWith('norm.weight');
  if (minusOne && dtype !== 'F32')
    badGguf(file.path, `tensor '${tensor.name}' is a norm that is not F32`, { got: tensor.type.name });
  return Array.from({ length: slices }, (_, slice) => ({
    entry: {
      name: to.replace('{expert}', String(expert ?? slice)),
      dtype,
      shape,
      begin: 0,
      end: (shape.reduce((a, b) => a * b, 1) * dtypeFacts(dtype).bits) / 8,
    },
    from: tensor,
    position: tensor.position + (slice * tensor.bytes) / slices,
    bytes: padded ? (tensor.bytes / (whole[0] ?? 1)) * (own[0] ?? 1) : tensor.bytes / slices,
    fix: fix === 'turned' && own.length !== 2 ? undefined : fix,
    minusOne,
    minusExp,
    ...(states && { states }),
    ...(half && { half }),
  }));
}

/** How many rows of a tensor are the checkpoint's: others are zeros. */
function rowsOf(file: GgufModelFile, facts: GgufFacts, { name, shape }: Placed): number {
  const [all = 0] = shape;
  const own = facts.optional(PER_LAYER_ROWS) ?? all;
  if (Number.isInteger(own) && own > 0 && own <= all) return own;
  return badGguf(file.path, `'${PER_LAYER_ROWS}' is no number of rows of '${name}'`, {
    got: own,
    expected: `1 to ${all}`,
  });
}

/** The shape in the checkpoint of a tensor of the file, whose slowest dimension is first. */
export function checkpointShape(fix: Fix | undefined, own: readonly number[]): readonly number[] {
  if (fix === 'one-row' && own.length === 1) return [1, ...own];
  if (own.length !== 2) return own;
  const [rows = 0, columns = 0] = own;
  if (fix === 'turned') return [columns, rows];
  if (fix === 'squeezed') return [rows, 1, columns];
  return fix === 'column' || fix === 'groups' ? [rows * columns] : own;
}

/** The checkpoint's name of a tensor, with {expert} of a stack; undefined for one that the architecture has no place for. */
export function checkpointPlace(
  { outer, blocks, block }: GgufArchitecture,
  name: string,
): (PartName & { readonly expert?: string | undefined }) | undefined {
  const own = Object.hasOwn(outer, name) ? outer[name] : undefined;
  if (own !== undefined) return typeof own === 'string' ? { to: own } : own;
  const find = (key: string) => (Object.hasOwn(block, key) ? block[key] : undefined);
  const facts = (found: PartName | string): PartName => (typeof found === 'string' ? { to: found } : found);
  const [, at, bare] = /^blk\.(\d+)\.(\w+)$/.exec(name) ?? [];
  const alone = bare === undefined ? undefined : find(`${bare}.`);
  if (alone !== undefined) return { ...facts(alone), to: `${blocks}.${at}.${facts(alone).to}` };
  // Files of before April 2024 have each expert by itself.
  const parts = /^blk\.(\d+)\.([a-z][\w.]*?)(?:\.(\d+))?\.(weight|bias|scale)$/.exec(name);
  if (!parts) return undefined;
  const [, layer, part, expert, suffix] = parts;
  const whole = find(`${part}.${suffix}`);
  if (whole === undefined && suffix === 'scale') return undefined;
  const found = whole ?? find(expert === undefined ? String(part) : `${part}_exps`);
  if (found === undefined) return undefined;
  const { to, ...more } = facts(found);
  return { to: `${blocks}.${layer}.${to}${whole === undefined ? `.${suffix}` : ''}`, ...more, expert };
}
