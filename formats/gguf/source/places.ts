import { dtypeFacts } from '../../safetensors/dtypes.js';
import type { TensorEntry } from '../../safetensors/header.js';
import type { GgufArchitecture } from '../architectures/architecture.js';
import type { Fix, PartName } from '../architectures/parts.js';
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
  /** It is made of these two instead. */
  readonly halves?: LatentHalves;
}

/** Tensors that config.json has in words. */
const SPENT = /^rope_(freqs|factors_long|factors_short)\.weight$|\.(attn_rot_embd|rope_freqs)(\.weight)?$/;

/** The tensors of a model by their names in its checkpoint. Throws LPQ_GGUF for a tensor that has no place in it. */
export function placesOf(file: GgufModelFile, model: GgufSourceModel): Map<string, Place> {
  const places = new Map<string, Place>();
  const halves = new Map<string, Partial<LatentHalves>>();
  const put = (place: Place): void => {
    const { name } = place.entry;
    if (places.has(name)) badGguf(file.path, `two of its tensors are '${name}'`, { got: place.from.name });
    places.set(name, place);
  };
  for (const tensor of file.tensors.values()) {
    if (SPENT.test(tensor.name)) continue;
    const half = latentHalf(tensor.name, model.architecture);
    if (half) halves.set(half.layer, { ...halves.get(half.layer), [half.half]: tensor });
    else for (const place of placesFor(file, model, tensor)) put(place);
  }
  for (const [layer, both] of halves) put(latentPlace(file, model, layer, both));
  return places;
}

/** One, or one for each expert of a stack. */
function placesFor(file: GgufModelFile, { architecture, config }: GgufSourceModel, tensor: Placed): Place[] {
  const found = checkpointPlace(architecture, tensor.name);
  if (!found)
    return badGguf(file.path, `tensor '${tensor.name}' has no place in a model of type ${config.model_type}`, {
      hint: 'Start from the safetensors that it was converted from.',
    });
  const { to, fix, expert } = found;
  const stacked = to.includes('{expert}') && expert === undefined;
  const rank = tensor.shape.length;
  if (rank === 3 && !stacked) badGguf(file.path, `tensor '${tensor.name}' has 3 dimensions`, { got: tensor.shape });
  const slices = stacked ? (tensor.shape[0] as number) : 1;
  const own = stacked ? tensor.shape.slice(1) : tensor.shape;
  const shape =
    fix === 'one-row' && own.length === 1 ? [1, ...own] : fix === 'turned' && own.length === 2 ? own.toReversed() : own;
  const { holds } = tensor.type;
  const dtype = typeof holds === 'string' ? holds : 'F32';
  const minusOne = architecture.normsPlusOne === true && to.endsWith('norm.weight');
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
    bytes: tensor.bytes / slices,
    fix: fix === 'turned' && own.length !== 2 ? undefined : fix,
    minusOne,
  }));
}

/** The checkpoint's name of a tensor, with {expert} of a stack; undefined for one that the architecture has no place for. */
export function checkpointPlace(
  { outer, blocks, block }: GgufArchitecture,
  name: string,
): (PartName & { readonly expert?: string | undefined }) | undefined {
  const own = Object.hasOwn(outer, name) ? outer[name] : undefined;
  if (own !== undefined) return typeof own === 'string' ? { to: own } : own;
  // Files of before April 2024 have each expert by itself.
  const parts = /^blk\.(\d+)\.(\w+?)(?:\.(\d+))?\.(weight|bias)$/.exec(name);
  if (!parts) return undefined;
  const [, layer, part, expert, suffix] = parts;
  const find = (key: string) => (Object.hasOwn(block, key) ? block[key] : undefined);
  const whole = find(`${part}.${suffix}`);
  const found = whole ?? find(expert === undefined ? String(part) : `${part}_exps`);
  if (found === undefined) return undefined;
  const { to, fix } = typeof found === 'string' ? { to: found, fix: undefined } : found;
  return { to: `${blocks}.${layer}.${to}${whole === undefined ? `.${suffix}` : ''}`, ...(fix && { fix }), expert };
}
