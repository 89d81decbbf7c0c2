import { type NativeRuntime, readTyped, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import type { Feed, Stage } from '../model/program.js';
import type { Room } from './room.js';
import type { ActivationStream, Step } from './streams.js';

/** Second moments of one activation: what all linears that read it share. */
export interface FeedStatistics {
  /** H = sum over rows of xq xqᵀ, [K,K] in the runtime's moment dtype, of the inputs that the quantized model really sees. Every token weighs the same. */
  readonly h: Tensor;
  /**
   * D = sum (xf - xq) xqᵀ, of that dtype, xf from the unquantized model, over the rows of which both are known, times
   * all rows / those rows; absent where rows cannot be matched (experts).
   */
  readonly drift?: Tensor;
  /** Rows summed; fewer than the tokens for an expert, possibly 0. */
  readonly tokens: number;
}

/** A run of batches whose moments are summed up from zero; the first `paired` of them go through the original model, too. */
export interface Section {
  readonly batches: number;
  readonly paired: number;
}

/** The calibration data of one device: through the quantized model and, for some of its batches, through the original. */
export interface Streams {
  readonly quantized: ActivationStream;
  /** The paired batches of all sections, one after another. */
  readonly original: ActivationStream | undefined;
  /** All rows over those of `original`. */
  readonly driftScale: number;
  /** The batches of the streams, in order. */
  readonly sections: readonly Section[];
  /** Sums of sections stay apart, for the device that has the sections before them to add. */
  readonly apart: boolean;
}

/** A stage and the weights of both models. */
export interface Capture {
  readonly stage: Stage;
  readonly quantized: Step['weights'];
  readonly original: Step['weights'];
}

interface Sum {
  readonly h: Tensor;
  readonly drift?: Tensor;
  tokens: number;
}
type Sums = ReadonlyMap<string, Sum>;

/** Batches in flight: one computes while JavaScript prepares the next; temporaries of all of them take memory. */
const IN_FLIGHT = { cpu: 1, device: 2 };

/** A batch on its way, and what has to stay until it has arrived. */
interface Flight {
  readonly captured: ReadonlyMap<string, Tensor>;
  readonly twins: ReadonlyMap<string, Tensor>;
  readonly sums: Sums;
  readonly done: Promise<void>;
}

/**
 * Sweeps over all batches: both streams pass what is pending, and the inputs of the stage's `feeds` are summed up, section
 * by section. With an original stream, feeds whose rows are the batch's tokens also get D. Returns one map, with all
 * sections added in their order, or where they stay apart one a section. Throws LPQ_MODULE_NUMERICS naming the linears
 * when their input holds NaN or infinity. The caller disposes of the result.
 */
export async function sweepStatistics(
  rt: NativeRuntime,
  streams: Streams,
  capture: Capture,
  feeds: ReadonlySet<string>,
  room: Room,
): Promise<Map<string, FeedStatistics>[]> {
  const { stage } = capture;
  const made: Map<string, Sum>[] = [];
  const flights: Flight[] = [];
  const land = async (): Promise<void> => {
    const oldest = flights.shift();
    if (!oldest) return;
    try {
      await settled(rt, oldest.done, stage, oldest.sums, oldest.captured);
    } finally {
      for (const x of [...oldest.captured.values(), ...oldest.twins.values()]) x.dispose();
    }
  };
  let spare: Map<string, Sum> | undefined;
  try {
    const place = { batch: 0, twin: 0 };
    for (const [index, section] of streams.sections.entries()) {
      const joined = index > 0 && !streams.apart;
      let sums = joined ? spare : undefined;
      if (sums) clear(rt, sums);
      else {
        sums = zeroSums(rt, stage, feeds, (streams.original?.batches ?? 0) > 0);
        if (joined) spare = sums;
        else made.push(sums);
      }
      for (let i = 0; i < section.batches; i++) {
        flights.push(await visit(rt, streams, capture, sums, room, place, i < section.paired));
        if (i === section.paired - 1)
          for (const { h, drift } of sums.values())
            if (drift) ops.crossDrift(rt, h, drift, { scale: streams.driftScale });
        if (flights.length >= IN_FLIGHT[rt.device === 'cpu' ? 'cpu' : 'device']) await land();
      }
      if (joined) join(rt, made[0] as Map<string, Sum>, sums);
    }
    while (flights.length > 0) await land();
    for (const sums of made) for (const { h } of sums.values()) ops.gramFinish(rt, h);
    streams.quantized.finish();
    streams.original?.finish();
    await settled(rt, rt.sync(), stage, made[0] ?? new Map(), new Map());
  } catch (error) {
    for (const { done } of flights) done.catch(() => {});
    for (const sums of made) disposeStatistics(sums);
    throw error;
  } finally {
    if (spare) disposeStatistics(spare);
  }
  return made;
}

/** Sums of a stage's `feeds` before the first batch. */
function zeroSums(rt: NativeRuntime, stage: Stage, feeds: ReadonlySet<string>, paired: boolean): Map<string, Sum> {
  const sums = new Map<string, Sum>();
  for (const { id, linears } of stage.feeds) {
    if (!feeds.has(id)) continue;
    const { k, expert } = linears[0] as Feed['linears'][number];
    const matrix = () => rt.allocate(rt.momentDtype, [k, k]);
    sums.set(id, { h: matrix(), ...(paired && expert === undefined && { drift: matrix() }), tokens: 0 });
  }
  clear(rt, sums);
  return sums;
}

function clear(rt: NativeRuntime, sums: Sums): void {
  for (const sum of sums.values()) {
    ops.zero(rt, sum.h);
    if (sum.drift) ops.zero(rt, sum.drift);
    sum.tokens = 0;
  }
}

/** Adds a section's sums to those of the sections before it. */
function join(rt: NativeRuntime, all: Sums, section: Sums): void {
  for (const [id, { h, drift, tokens }] of section) {
    const to = all.get(id) as Sum;
    ops.add(rt, to.h, h, to.h);
    if (to.drift && drift) ops.add(rt, to.drift, drift, to.drift);
    to.tokens += tokens;
  }
}

/** Takes the next batch through both models, and adds what the stage's feeds read to `sums`. */
async function visit(
  rt: NativeRuntime,
  { quantized, original }: Streams,
  { stage, ...weights }: Capture,
  sums: Map<string, Sum>,
  room: Room,
  place: { batch: number; twin: number },
  paired: boolean,
): Promise<Flight> {
  quantized.prefetch(place.batch + 1);
  if (paired) original?.prefetch(place.twin + 1);
  const step = (of: Step['weights']) => (sums.size > 0 ? { stage, weights: of } : undefined);
  const captured = await quantized.visit(place.batch++, room, step(weights.quantized));
  const twins =
    original && paired ? await original.visit(place.twin++, room, step(weights.original)) : new Map<string, Tensor>();
  for (const [id, x] of captured) {
    const sum = sums.get(id);
    const rows = x.shape[0] as number;
    if (!sum || rows === 0) continue;
    sum.tokens += rows;
    ops.gramAccumulate(rt, x, sum.h);
    const twin = twins.get(id);
    if (sum.drift && twin) ops.crossAccumulate(rt, twin, x, sum.drift);
  }
  return { captured, twins, sums, done: rt.mark() };
}

export function disposeStatistics(statistics: ReadonlyMap<string, FeedStatistics>): void {
  for (const { h, drift } of statistics.values()) {
    h.dispose();
    drift?.dispose();
  }
}

/** A device tells of bad data when it is asked only. */
async function settled(
  rt: NativeRuntime,
  done: Promise<void>,
  stage: Stage,
  sums: Sums,
  captured: ReadonlyMap<string, Tensor>,
): Promise<void> {
  try {
    await done;
  } catch (cause) {
    if ((cause as { code?: string }).code !== 'LPQ_NATIVE_NUMERICS') throw cause;
    throw await notFinite(rt, stage, sums, captured, cause);
  }
}

async function notFinite(
  rt: NativeRuntime,
  stage: Stage,
  sums: Sums,
  captured: ReadonlyMap<string, Tensor>,
  cause: unknown,
): Promise<LpqError> {
  await rt.sync().catch(() => {}); // it tells of the failure once more, and then computes again
  let broken = stage.feeds[0] as Feed;
  for (const feed of stage.feeds) {
    const x = captured.get(feed.id);
    const h = sums.get(feed.id)?.h;
    if ((x && !(await allFinite(rt, x))) || (h && !(await finiteDiagonal(rt, h)))) {
      broken = feed;
      break;
    }
  }
  const names = broken.linears.map((linear) => linear.name).join(', ');
  return new LpqError('LPQ_MODULE_NUMERICS', `the input of ${names} holds NaN or infinity`, {
    cause,
    hint: 'Look for NaN in the weights of this block and the previous one, or skip these modules.',
  });
}

async function allFinite(rt: NativeRuntime, x: Tensor): Promise<boolean> {
  if (x.dtype === 'f32') return (await readTyped(rt, x)).every(Number.isFinite);
  const exponent = x.dtype === 'bf16' ? 0x7f80 : 0x7c00; // all ones: NaN or infinity
  return (await readTyped<Uint16Array>(rt, x)).every((bits) => (bits & exponent) !== exponent);
}

async function finiteDiagonal(rt: NativeRuntime, h: Tensor): Promise<boolean> {
  const diagonal = rt.allocate('f64', [h.shape[0] as number]);
  ops.diagonal(rt, h, diagonal);
  try {
    return (await readTyped<Float64Array>(rt, diagonal)).every(Number.isFinite);
  } finally {
    diagonal.dispose();
  }
}
