import { type DType, type NativeRuntime, readTyped, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { disposePacked } from './packed.js';
import type { Block, BlockWeights, JoinedLinear, LinearRef } from './program.js';
import type { PackedWeight } from './source.js';

/** Feeds whose stages read the product of a joined linear in place. */
const FEEDS: ReadonlySet<string> = new Set(['qkv', 'gate_up']);

/**
 * Makes one linear of those of a block that read one input (q, k and v; gate and up), where their weights have one form: rows one below
 * another, in whatever layout. Their own tensors are let go of, and `weights.joined` says what there is instead. What cannot be
 * joined stays as it is. For weights that are used whole and not changed: neither capture() nor a quantizer knows of joined ones.
 */
export async function joinSiblings(rt: NativeRuntime, block: Block, weights: BlockWeights): Promise<void> {
  for (const { feeds } of block.stages)
    for (const { id, linears } of feeds) {
      if (!FEEDS.has(id) || linears.length < 2 || linears.some(({ name }) => weights.activations?.has(name))) continue;
      await join(rt, weights, linears);
    }
}

async function join(rt: NativeRuntime, weights: BlockWeights, linears: readonly LinearRef[]): Promise<void> {
  const biases = linears.map(({ name }) => weights.get(`${name}.bias`));
  if (biases.some((bias) => bias?.dtype !== biases[0]?.dtype)) return;
  const names = linears.map(({ name }) => `${name}.weight`);
  const joined: JoinedLinear = {
    name: linears.map(({ name }) => name).join('+'),
    n: linears.reduce((sum, { n }) => sum + n, 0),
    k: linears[0]!.k,
    bias: biases[0] !== undefined,
  };
  const packed = names.flatMap((name) => weights.packed?.get(name) ?? []);
  const dense = names.flatMap((name) => weights.get(name) ?? []);
  if (packed.length === names.length) {
    const whole = await joinPacked(rt, packed, joined);
    if (!whole) return;
    weights.packed!.set(`${joined.name}.weight`, whole);
    for (const [i, name] of names.entries()) {
      disposePacked(packed[i]!);
      weights.packed!.delete(name);
    }
  } else if (dense.length === names.length && same(dense.map(({ dtype }) => dtype))) {
    weights.set(`${joined.name}.weight`, below(rt, dense, [joined.n, joined.k]));
    release(weights, names);
  } else return;
  if (joined.bias) {
    weights.set(`${joined.name}.bias`, below(rt, biases as Tensor[], [joined.n]));
    release(
      weights,
      linears.map(({ name }) => `${name}.bias`),
    );
  }
  weights.joined ??= new Map();
  weights.joined.set(linears[0]!.name, joined);
}

function release(weights: BlockWeights, names: readonly string[]): void {
  for (const name of names) {
    weights.get(name)?.dispose();
    weights.delete(name);
  }
}

/**
 * Output features of a layout's tile, of which whole ones stand beside or below one another; and how: `below`, the tiles of an output
 * feature are neighbours in memory, or `beside`, those of an input feature are. docs/layouts.md.
 */
const TILES: Partial<Record<PackedWeight['layout'], { readonly n: number; readonly weights: 'below' | 'beside' }>> = {
  tilus: { n: 32, weights: 'below' },
  comet: { n: 16, weights: 'below' },
  w8a8: { n: 1, weights: 'below' },
  marlin: { n: 64, weights: 'beside' },
  turbomind: { n: 64, weights: 'beside' },
};

/** Undefined where the weights are not alike, or their layout does not come apart so. */
async function joinPacked(
  rt: NativeRuntime,
  parts: readonly PackedWeight[],
  { n, k }: JoinedLinear,
): Promise<PackedWeight | undefined> {
  const first = parts[0]!;
  const tile = TILES[first.layout];
  if (!tile || parts.some(({ shape }) => shape[0] % tile.n !== 0) || !same(parts.map(formOf))) return undefined;
  // Tensors without padding, so that what follows is a sibling's first.
  if (parts.some((part) => paddedRows(part) !== part.shape[0])) return undefined;
  if (!(await readAlike(rt, parts))) return undefined;
  const shape = [n, k] as const;
  const all = (of: (part: PackedWeight) => Tensor) => parts.map(of);
  const down = (of: (part: PackedWeight) => Tensor) => {
    const [, ...rest] = of(first).shape;
    return below(rt, all(of), [all(of).reduce((sum, tensor) => sum + tensor.shape[0]!, 0), ...rest]);
  };
  const weights = (part: PackedWeight) => part.weights;
  const scales = (part: PackedWeight) => part.scales;
  const zeros = (part: PackedWeight) => (part as { readonly zeros: Tensor }).zeros;
  switch (first.layout) {
    case 'tilus':
      return {
        ...first,
        shape,
        weights: down(weights),
        scales: down(scales),
        ...(first.zeros && { zeros: down(zeros) }),
      };
    case 'w8a8':
      return { ...first, shape, weights: down(weights), scales: down(scales) };
    case 'comet': {
      const { bits, clip, blocks, permutation } = first;
      return {
        ...first,
        shape,
        weights: down(weights),
        scales: beside(rt, all(scales)),
        bits: bits.view(bits.shape),
        clip: clip.view(clip.shape),
        blocks: blocks.view(blocks.shape),
        ...(permutation && { permutation: permutation.view(permutation.shape) }),
      };
    }
    case 'marlin':
      return {
        ...first,
        shape,
        weights: beside(rt, all(weights)),
        scales: beside(rt, all(scales)),
        ...(first.zeros && { zeros: beside(rt, all(zeros)) }),
      };
    case 'turbomind': {
      // Sixteens of input features one after another: [K/16, 16 N bits / 32].
      const rows = k / 16;
      const whole = beside(rt, all(weights), rows);
      const flat = whole.view([all(weights).reduce((sum, { shape }) => sum + shape[0]!, 0)]);
      whole.dispose();
      const [groups, , ...pair] = first.scales.shape as [number, number, ...number[]];
      const together = beside(rt, all(scales), groups);
      const shaped = together.view([groups, n, ...pair]);
      together.dispose();
      return { ...first, shape, weights: flat, scales: shaped };
    }
    default:
      return undefined;
  }
}

/** What must be one thing for all: layout, type, groups, inputs, dtypes, and what zero points there are. */
function formOf(part: PackedWeight): string {
  const { layout, type, groupLength, shape, weights, scales } = part;
  const zeros = 'zeros' in part ? part.zeros?.dtype : undefined;
  const dtypes: (DType | undefined)[] = [weights.dtype, scales.dtype, zeros];
  const zero = layout === 'tilus' ? part.zero : undefined;
  const experts = layout === 'turbomind' ? part.experts : undefined;
  return JSON.stringify([
    layout,
    type,
    groupLength,
    shape[1],
    weights.shape.length,
    dtypes,
    zero ?? null,
    experts ?? null,
  ]);
}

/** Output features that the tensors have. */
function paddedRows(part: PackedWeight): number {
  const { layout, weights, scales } = part;
  if (layout === 'tilus') return 32 * weights.shape[0]!;
  if (layout === 'comet') return 16 * weights.shape[0]!;
  return layout === 'w8a8' ? weights.shape[0]! : scales.shape[1]!;
}

/** Whether the weights read their input alike: in place, or of comet in one order and with the same blocks. */
async function readAlike(rt: NativeRuntime, parts: readonly PackedWeight[]): Promise<boolean> {
  const first = parts[0]!;
  if (first.layout === 'turbomind') return !first.experts && first.shape[1] % 16 === 0;
  if (first.layout !== 'comet') return parts.every((part) => !('permutation' in part && part.permutation));
  const comets = parts as readonly Extract<PackedWeight, { layout: 'comet' }>[];
  if (comets.some(({ eights, permutation }) => eights !== first.eights || !permutation !== !first.permutation))
    return false;
  for (const of of [
    ({ bits }) => bits,
    ({ clip }) => clip,
    ({ blocks }) => blocks,
    ({ permutation }) => permutation,
  ] satisfies ((part: (typeof comets)[number]) => Tensor | undefined)[]) {
    const texts: string[] = [];
    for (const part of comets) {
      const tensor = of(part);
      texts.push(tensor ? String(await readTyped<Int32Array>(rt, tensor)) : '');
    }
    if (!same(texts)) return false;
  }
  return true;
}

function same(values: readonly unknown[]): boolean {
  return values.every((value) => value === values[0]);
}

/** The elements of the parts one after another. */
function below(rt: NativeRuntime, parts: readonly Tensor[], shape: readonly number[]): Tensor {
  const flat = beside(rt, parts, 1);
  const whole = flat.view(shape);
  flat.dispose();
  return whole;
}

/** The parts beside one another, as matrices of `rows` rows: [rows, ...]. */
function beside(rt: NativeRuntime, parts: readonly Tensor[], rows = parts[0]!.shape[0] as number): Tensor {
  const widths = parts.map(({ shape }) => shape.reduce((all, dim) => all * dim, 1) / rows);
  const y = rt.allocate(parts[0]!.dtype, [rows, widths.reduce((sum, width) => sum + width, 0)]);
  let first = 0;
  for (const [i, part] of parts.entries()) {
    const x = part.view([rows, widths[i]!]);
    ops.placeColumns(rt, x, y, { first });
    x.dispose();
    first += widths[i]!;
  }
  return y;
}
