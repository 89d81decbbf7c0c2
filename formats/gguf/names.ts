import type { GgufArchitecture } from './architectures/architecture.js';
import { GGUF_ARCHITECTURES } from './architectures/index.js';
import type { Fix, PartName } from './architectures/parts.js';

/** Where a tensor of a checkpoint goes. */
export interface GgufName {
  readonly name: string;
  /** The slice of a stack: of experts, of the norms of heads, or of AltUp's linears. */
  readonly expert?: number;
  readonly fix?: Fix;
  readonly states?: 'rows' | 'behind' | 'columns';
  readonly minusExp?: true;
  readonly plain?: true;
  readonly padded?: true;
  /** The tensor of the second half of its rows; `name` has the first then. */
  readonly second?: string;
}

/** A part of GGUF's, as the checkpoint's name leads to it; `whole`: with its suffix, or its lack of one. */
interface Found {
  readonly part: string;
  readonly whole: boolean;
  readonly facts: Omit<PartName, 'to' | 'half'>;
  /** The part that has the second half of its rows. */
  second?: string;
}

interface Inverse {
  readonly outer: ReadonlyMap<string, Pick<Found, 'part' | 'facts'>>;
  readonly block: ReadonlyMap<string, Found>;
  readonly order: readonly string[];
}

/** What a part of a block ends in that is not of its name. */
const SUFFIX = /\.(weight|bias|scale)$|\.$/;

const inverses = new WeakMap<GgufArchitecture, Inverse>();

function inverseOf(architecture: GgufArchitecture): Inverse {
  const known = inverses.get(architecture);
  if (known) return known;
  const named = (entry: PartName | string): PartName => (typeof entry === 'string' ? { to: entry } : entry);
  const made: Inverse = {
    outer: new Map(
      Object.entries(architecture.outer).map(([part, entry]) => {
        const { to, half: _, ...facts } = named(entry);
        return [to, { part, facts }];
      }),
    ),
    block: new Map(
      Object.entries(architecture.block)
        .filter(([, entry]) => named(entry).half !== 'second')
        .map(([part, entry]) => {
          const { to, half: _, ...facts } = named(entry);
          return [to, { part: part.replace(/\.$/, ''), whole: SUFFIX.test(part), facts }];
        }),
    ),
    order: Object.keys(architecture.block).map((part) => part.replace(SUFFIX, '')),
  };
  for (const [part, entry] of Object.entries(architecture.block)) {
    const { to, half } = named(entry);
    const first = half === 'second' ? made.block.get(to) : undefined;
    if (first) first.second = part;
  }
  inverses.set(architecture, made);
  return made;
}

/** The name in GGUF of tensor `name` of a checkpoint; undefined for one that llama.cpp has no place for. */
export function ggufName(architecture: GgufArchitecture, name: string): GgufName | undefined {
  const { outer, block } = inverseOf(architecture);
  const own = outer.get(name);
  if (own !== undefined) return { name: own.part, ...own.facts };
  const slice = /\.(\d+)(?=\.)/.exec(name);
  const outside = slice && outer.get(name.replace(slice[0], '.{expert}'));
  if (outside) return { name: outside.part, expert: Number(slice[1]), ...outside.facts };
  const prefix = `${architecture.blocks}.`;
  const [, layer, path = ''] = (name.startsWith(prefix) && /^(\d+)\.(.+)$/.exec(name.slice(prefix.length))) || [];
  if (layer === undefined) return undefined;
  const [, inner = '', kind] = /^(.+)\.(weight|bias)$/.exec(path) ?? [];
  const find = (key: string, whole: boolean): Found | undefined => {
    const found = block.get(key);
    return found?.whole === whole ? found : undefined;
  };
  const exact = find(path, true);
  if (exact) return { name: `blk.${layer}.${exact.part}`, ...exact.facts };
  const [, before, expert, after] = /^(.+)\.(\d+)(\..+|)$/.exec(inner) ?? [];
  const found = find(inner, false) ?? (before === undefined ? undefined : find(`${before}.{expert}${after}`, false));
  if (!found) return undefined;
  const stacked = expert === undefined || block.has(inner) ? {} : { expert: Number(expert) };
  const second = found.second === undefined ? {} : { second: `blk.${layer}.${found.second}.${kind}` };
  return { name: `blk.${layer}.${found.part}.${kind}`, ...stacked, ...second, ...found.facts };
}

/** Both tensors of a matrix whose halves of rows are apart, as one that GgufFile reads: FIRST+SECOND. */
export const joinedName = ({ name, second }: Pick<GgufName, 'name' | 'second'>): string =>
  second === undefined ? name : `${name}+${second}`;

/** The tensor of linear `name` in whichever architecture has such a linear; undefined where none has. */
export function anyGgufName(name: string): GgufName | undefined {
  for (const architecture of Object.values(GGUF_ARCHITECTURES)) {
    const found = ggufName(architecture, `${name}.weight`);
    if (found) return found;
  }
  return undefined;
}

/** How many rows of per-layer embeddings the checkpoint has, where the file has more, of zeros. */
export const PER_LAYER_ROWS = 'lpq.per_layer_rows';

/** Tensors that say how positions are scaled, in the order of the file. */
export const ROPE_TENSORS = ['rope_freqs.weight', 'rope_factors_long.weight', 'rope_factors_short.weight'] as const;

/** Order of tensors in the file: the outer ones, then block by block. */
export function ggufOrder(architecture: GgufArchitecture, name: string): number {
  const block = /^blk\.(\d+)\.([\w.]+)/.exec(name.replace(SUFFIX, ''));
  if (!block) return [...Object.keys(architecture.outer), ...ROPE_TENSORS].indexOf(name.replace(/\[\d+\]$/, ''));
  return (Number(block[1]) + 1) * 100 + inverseOf(architecture).order.indexOf(block[2] as string);
}

/**
 * Row r of GGUF's q or k is row order[r] of the checkpoint's: of each head of 2d rows, row 2i + h is row d h + i. Without
 * heads the rows keep their places.
 */
export function rowOrder(rows: number, heads: number | undefined): Int32Array {
  if (heads === undefined) return Int32Array.from({ length: rows }, (_, row) => row);
  const size = rows / heads;
  return Int32Array.from({ length: rows }, (_, row) => {
    const within = row % size;
    return row - within + (within % 2) * (size / 2) + Math.floor(within / 2);
  });
}

/**
 * Row r of GGUF's q or k where it turns halves and the checkpoint neighbours: of the first `rotary` rows of each head, row h rotary / 2 + i
 * is row 2i + h of the checkpoint's.
 */
export function halvesOrder(rows: number, heads: number, rotary: number): Int32Array {
  const size = rows / heads;
  return Int32Array.from({ length: rows }, (_, row) => {
    const within = row % size;
    if (within >= rotary) return row;
    return row - within + 2 * (within % (rotary / 2)) + Math.floor(within / (rotary / 2));
  });
}

/** The same of q, k and v one behind the other, which the checkpoint has head by head: [heads, 3, headDim] of rows. */
export function partOrder(rows: number, heads: number): Int32Array {
  const size = rows / heads / 3;
  return Int32Array.from({ length: rows }, (_, row) => {
    const [part, head] = [Math.floor(row / (heads * size)), Math.floor(row / size) % heads];
    return (head * 3 + part) * size + (row % size);
  });
}
