import { latentStored, MOST_LATENT, MOST_ROTARY } from '../../formats/kv/latent.js';
import { type NativeRuntime, type Tensor, uploadTyped } from '../../native/binding.js';
import { padHeads } from '../../native/kv-heads.js';
import { ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import { readLatents } from './decoded-latents.js';
import type { MlaPlan } from './plan-mla.js';
import type { BlockState, BlockWeights, KeptLatents } from './program.js';
import { applyLinear } from './weights.js';

/** What attention of a batch reads, and where the result goes. */
interface LatentTensors {
  /** f32 [T, heads*(plain + rotary)], turned. */
  readonly q: Tensor;
  /** What kvB reads, [T, latent]. */
  readonly c: Tensor;
  /** The rotary key of all heads, f32 [T, rotary], turned. */
  readonly turned: Tensor;
  /** Any activation dtype [T, heads*value]. */
  readonly y: Tensor;
}

/**
 * Latent attention in the space of the latent, over a cache of latents: keeps the batch's tokens in `kept`, and enqueues attention over
 * all of them; on a device also where a text is read as a whole. False where keys and values of the heads are still to be made and
 * attended to: without such a cache, and for prompts. Throws LPQ_USAGE for latents that no page holds.
 */
export function attendLatents(
  rt: NativeRuntime,
  weights: BlockWeights,
  plan: MlaPlan,
  { q, c, turned, y }: LatentTensors,
  state: BlockState,
  kept: KeptLatents | undefined,
): boolean {
  const { heads, scale } = plan;
  const stored = latentStored(plan.latent, plan.rotary);
  const scheme = !state.attend && rt.device !== 'cpu' ? weights.latents : undefined;
  if (!kept && !scheme) return false;
  requireStored(plan);
  const latents = asHalves(rt, c, plan.latent, stored.latent);
  const keys = asHalves(rt, turned, plan.rotary, stored.rotary);
  kept?.keep(latents, keys);
  const tensors = { q, y };
  if (scheme)
    readLatents(rt, scheme, { c: latents, rotary: keys }, state.batch, (rows, attend) =>
      absorbed(rt, weights, plan, rowsOf(tensors, rows), (query, made) => attend(query, made, { heads, scale })),
    );
  else if (kept && !kept.prompts)
    absorbed(rt, weights, plan, rowsOf(tensors, { first: 0, count: state.batch.tokens }), (query, made) =>
      kept.attend(query, made, { heads, scale }),
    );
  for (const tensor of [latents, keys]) tensor.dispose();
  return !kept?.prompts;
}

function requireStored({ latent, rotary, kvB }: MlaPlan): void {
  if (latent <= MOST_LATENT && rotary <= MOST_ROTARY) return;
  throw new LpqError('LPQ_USAGE', `no cache of latents holds what '${kvB.name}' reads`, {
    got: `latents of ${latent} dims and rotary keys of ${rotary}`,
    expected: `up to ${MOST_LATENT} and ${MOST_ROTARY}`,
    hint: 'Leave --kv out.',
  });
}

/** x [T, dims] as f16 [T, stored], zeros behind. */
function asHalves(rt: NativeRuntime, x: Tensor, dims: number, stored: number): Tensor {
  const half = rt.allocate('f16', x.shape);
  ops.cast(rt, x, half);
  const padded = padHeads(rt, half, { headDim: dims, dims: stored });
  half.dispose();
  return padded;
}

/** Views of some tokens' rows. */
function rowsOf<T extends Record<string, Tensor>>(of: T, { first, count }: { first: number; count: number }): T {
  const views = Object.entries(of).map(([name, x]) => {
    const width = x.shape[1] as number;
    return [name, x.view([count, width], first * width)];
  });
  return Object.fromEntries(views) as T;
}

/** y = attention of q's tokens by `attend` between the products that kvB is split into; disposes of both views. */
function absorbed(
  rt: NativeRuntime,
  weights: BlockWeights,
  plan: MlaPlan,
  { q, y }: { readonly q: Tensor; readonly y: Tensor },
  attend: (query: Tensor, made: Tensor) => void,
): void {
  const { heads, plain, rotary, value, latent } = plan;
  const { latent: columns, rotary: keys } = latentStored(latent, rotary);
  const tokens = q.shape[0] as number;
  const weight = expandedWeight(rt, weights, plan);
  const query = rt.allocate('f32', [tokens, heads * (columns + keys)]);
  if (columns !== latent || keys !== rotary) ops.zero(rt, query);
  const [fromDim, toDim] = [plain + rotary, columns + keys];
  const each = { heads, fromDim, toDim };
  ops.headLinear(rt, q, weight, query, { ...each, n: latent, k: plain, first: 0, turned: true, from: 0, to: 0 });
  ops.copyHeads(rt, q, query, { ...each, width: rotary, from: plain, to: columns });
  const half = rt.allocate('f16', query.shape);
  ops.cast(rt, query, half);
  query.dispose();
  const made = rt.allocate('f32', [tokens, heads * columns]);
  attend(half, made);
  const back = { heads, n: value, k: latent, first: plain, fromDim: columns, from: 0, toDim: value, to: 0 };
  ops.headLinear(rt, made, weight, y, back);
  for (const tensor of [half, made, q, y]) tensor.dispose();
}

/**
 * The weight of kvB as floats [heads*(plain + value), latent]. Of a packed one its product with the unit matrix, kept with the block's
 * weights: f32 on the CPU, f16 on a device.
 */
function expandedWeight(rt: NativeRuntime, weights: BlockWeights, { kvB }: MlaPlan): Tensor {
  const name = `${kvB.name}.weight`;
  const plain = weights.activations?.has(kvB.name) ? undefined : weights.get(name);
  const found = plain ?? weights.expanded?.get(name);
  if (found) return found;
  const unit = new Float32Array(kvB.k * kvB.k);
  for (let i = 0; i < kvB.k; i++) unit[i * kvB.k + i] = 1;
  const wide = uploadTyped(rt, 'f32', [kvB.k, kvB.k], unit);
  const x = rt.allocate(rt.activationDtype, wide.shape);
  ops.cast(rt, wide, x);
  const columns = applyLinear(rt, weights, kvB, x);
  const rows = rt.allocate('f32', [kvB.n, kvB.k]);
  ops.transpose(rt, columns, rows);
  const expanded = rt.allocate(rt.device === 'cpu' ? 'f32' : 'f16', rows.shape);
  ops.cast(rt, rows, expanded);
  for (const tensor of [wide, x, columns, rows]) tensor.dispose();
  weights.expanded ??= new Map();
  weights.expanded.set(name, expanded);
  return expanded;
}
