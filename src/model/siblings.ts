import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { oneAfterAnother } from './kernels/join.js';
import type { PackedWeight } from './kernels/kernel.js';
import { disposePacked, formOf } from './packed.js';
import type { Block, BlockWeights, JoinedLinear, LinearRef } from './program.js';

/** Feeds whose stages read the product of a joined linear in place. */
const FEEDS: ReadonlySet<string> = new Set(['qkv', 'gate_up']);

/**
 * Makes one linear of those of a block that read one input (q, k and v; gate and up), where their weights have one form: rows one below
 * another, in whatever layout. Their own tensors are let go of, and `weights.joined` says what there is instead. What cannot be
 * joined stays as it is. For weights that are used whole and not changed: neither capture() nor a quantizer knows of joined ones.
 */
export async function joinSiblings(rt: NativeRuntime, block: Block, weights: BlockWeights): Promise<void> {
  for (const { feeds } of block.stages)
    for (const { id, linears, apart } of feeds) {
      if (apart || !FEEDS.has(id) || linears.length < 2 || linears.some(({ name }) => weights.activations?.has(name)))
        continue;
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
    weights.set(`${joined.name}.weight`, oneAfterAnother(rt, dense, [joined.n, joined.k]));
    release(weights, names);
  } else return;
  if (joined.bias) {
    weights.set(`${joined.name}.bias`, oneAfterAnother(rt, biases as Tensor[], [joined.n]));
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

/** Undefined where the weights are not alike, or their layout does not come apart so. */
async function joinPacked(
  rt: NativeRuntime,
  parts: readonly PackedWeight[],
  { n, k }: JoinedLinear,
): Promise<PackedWeight | undefined> {
  const { joining } = parts[0]!.kernel;
  if (!joining || parts.some(({ shape }) => shape[0] % joining.tile !== 0) || !same(parts.map(formOf)))
    return undefined;
  // Tensors without padding, so that what follows is a sibling's first.
  if (parts.some((part) => joining.rows(part) !== part.shape[0])) return undefined;
  return (await joining.readAlike(rt, parts)) ? joining.join(rt, parts, [n, k]) : undefined;
}

function same(values: readonly unknown[]): boolean {
  return values.every((value) => value === values[0]);
}
