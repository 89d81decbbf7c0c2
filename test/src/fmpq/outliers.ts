import { cpSync, mkdirSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { SourceCheckpoint } from '../../../formats/canonical/source.js';
import { SafetensorsWriter } from '../../../formats/safetensors/write.js';
import { allocate, type Tensor, typed } from '../../../native/binding.js';
import { Random } from '../../../src/calibrate/random.js';
import { planSource } from '../../../src/model/graph.js';
import type { LinearPlan, NormPlan } from '../../../src/model/plan.js';

/**
 * A copy of a checkpoint that computes the same, with outlier channels: the weights of every norm before attention and MLP
 * are multiplied by `factor`, a power of two, in a share of the channels (the same of every norm, drawn by `seed`), and the
 * columns of the linears behind divided by it. Exact in bf16, fp16 and f32 while nothing over- or underflows. Dense models
 * whose norms have no offset.
 */
export async function injectOutliers(
  from: string,
  to: string,
  { factor, share, seed = 1 }: { factor: number; share: number; seed?: number },
): Promise<number[]> {
  if (!Number.isInteger(Math.log2(factor))) throw new Error(`${factor} is no power of two`);
  const source = SourceCheckpoint.open(from);
  const plan = planSource(source);
  const count = Math.round(share * plan.hidden);
  const channels = [...new Random(seed).shuffled(plan.hidden)].slice(0, count);
  /** By tensor: what its entries (of a norm) or columns (of a linear) are multiplied by. */
  const factors = new Map<string, number>();
  for (const { attention, mlp } of plan.blocks) {
    if (attention.kind !== 'attention' || mlp.kind === 'experts' || mlp.kind === 'nothing')
      throw new Error('dense models only');
    const into = mlp.kind === 'gated' ? [mlp.gate, mlp.up] : [mlp.kind === 'fused' ? mlp.gateUp : mlp.up];
    const qkv = attention.fused ? [attention.fused.linear] : [attention.q, attention.k, attention.v];
    const pairs: [NormPlan | undefined, LinearPlan[]][] = [
      [attention.norm, qkv],
      [mlp.norm, into],
    ];
    for (const [norm, linears] of pairs) {
      if (!norm?.weight || norm.offset !== 0) throw new Error('a norm without a plain weight');
      for (const name of [norm.weight, norm.bias]) if (name !== undefined) factors.set(name, factor);
      for (const { name } of linears) factors.set(`${name}.weight`, 1 / factor);
    }
  }
  mkdirSync(to, { recursive: true });
  for (const file of readdirSync(from))
    if (!/\.safetensors(\.index\.json)?$/.test(file)) cpSync(path.join(from, file), path.join(to, file));
  const names = [...source.names()];
  const writer = await SafetensorsWriter.create(
    to,
    names.map((name) => source.weights.spec(name)),
  );
  for (const name of names) {
    const tensor = source.weights.tensor(name);
    const by = factors.get(name);
    await writer.write(name, by === undefined ? tensor : scaled(tensor, channels, by));
  }
  await writer.finish();
  source.close();
  return channels;
}

/** Last axis, in the channels given, times a power of two: the exponent moves, of zeros nothing does. */
function scaled(tensor: Tensor, channels: readonly number[], factor: number): Tensor {
  if (tensor.dtype !== 'bf16') throw new Error(`${tensor.dtype}: only bf16 is scaled`);
  const made = allocate(tensor.dtype, tensor.shape);
  const to = typed<Uint16Array>(made);
  to.set(typed<Uint16Array>(tensor));
  const width = tensor.shape.at(-1) as number;
  const shift = Math.log2(factor) << 7;
  for (let row = 0; row < to.length; row += width)
    for (const channel of channels) {
      const bits = to[row + channel] as number;
      const exponent = bits & 0x7f80;
      if (exponent === 0) continue;
      const moved = exponent + shift;
      if (moved <= 0 || moved >= 0x7f80) throw new Error('a weight would over- or underflow');
      to[row + channel] = (bits & ~0x7f80) | moved;
    }
  return made;
}
