import { type NativeRuntime, type OpParams, readTyped, type Tensor, uploadTyped } from '../../native/binding.js';
import { gptqOps, type SolveInputs } from '../../native/gptq-ops.js';
import { ops } from '../../native/ops.js';
import type { FeedStatistics } from '../calibrate/statistics.js';
import { groupCount, printGranularity } from '../core/granularity.js';
import { type QuantType, quantType, typeParams, valueRange } from '../core/quant-type.js';
import { bitsPerWeight, constantZero } from '../quantize/grid.js';
import type { FeedQuantizer } from '../quantize/quantizer.js';
import type { QuantizedModule } from '../quantize/result.js';
import {
  notFiniteWeights,
  type ScaleRange,
  scaleRangeError,
  scalesMatter,
  smallScalesNote,
} from '../quantize/round.js';
import type { QuantScheme } from '../quantize/scheme.js';
import { storedZeros } from '../quantize/stored.js';
import type { GptqOptions } from './options.js';
import { solvingGroups, solvingOrder } from './order.js';

interface Factored {
  readonly orderIndices: Int32Array;
  readonly order: Tensor;
  readonly u: Tensor;
  readonly m: Tensor;
  readonly dead: Tensor;
  /** {damping used, attempts, floored columns}; not waited for before the first solve is under way. */
  readonly info: Promise<Float64Array>;
  readonly deadChannels: number;
  /** B of gptq_correction, once a linear has asked for it. */
  correction?: Tensor;
}

/**
 * GPTQ for the linears of one feed: the Hessian is factored once per order, however many linears share it. After the
 * GPTQ walk, rounds of scale refit and coordinate descent lower tr((What - T) H (What - T)ᵀ) further.
 */
export class FeedSolver implements FeedQuantizer {
  private readonly factored = new Map<string, Promise<Factored>>();
  constructor(
    private readonly rt: NativeRuntime,
    private readonly statistics: FeedStatistics,
    private readonly options: GptqOptions,
    /** Rows of all linears of the feed, wherever they are solved; undefined: those of the linear at hand. */
    private readonly rows?: number,
  ) {}

  /** Of what is decided again later, in fp32: the first look of the search, and the rounds of refine(). */
  private get rough(): OpParams {
    return this.rt.device === 'cpu' && this.rt.products === 'bf16' ? { bf16: true } : {};
  }

  /** Quantizes W [N,K] (f32, f16 or bf16). `name` is for messages. */
  async solve(name: string, weight: Tensor, scheme: QuantScheme): Promise<QuantizedModule> {
    const { rt, options } = this;
    const [n, k] = weight.shape as [number, number];
    const started = performance.now();
    const factored = await this.factor(scheme);
    const groups = groupCount(scheme.granularity, k);
    const type = typeParams(scheme.type);
    const group = uploadTyped(rt, 'i32', [k], solvingGroups(factored.orderIndices, scheme.granularity));
    const t = rt.allocate('f32', [n, k]);
    const scale = rt.allocate('f32', [n, groups]);
    const zero = rt.allocate('f32', [n, groups]);
    const level = rt.allocate('f32', [n, k]);
    const count = rt.allocate('f64', [1]);
    const info = rt.allocate('f64', [2]);
    const bad = rt.allocate('f64', [2]);
    const keep = scheme.sparsity && rt.allocate('f32', [n, k]);
    const scratch = [group, t, scale, zero, level, count, info, bad, ...(keep ? [keep] : [])];
    try {
      gptqOps.target(rt, weight, factored.order, factored.dead, this.correction(factored, n), t, bad);
      // The grid is fitted to what a first pruning without rounding leaves; the walk then chooses again, with rounding.
      if (keep) gptqOps.prune(rt, t, factored.u, level, keep);
      const fitted = keep ? level : t;
      const globalScale = scheme.globalScale ? await this.globalScale(fitted, scheme) : undefined;
      gptqOps.clip(rt, fitted, factored.m, group, { scale, zero }, this.search(scheme, globalScale));
      const problem: SolveInputs = { t, matrix: factored.u, scale, zero, group };
      const descent: SolveInputs = { ...problem, matrix: factored.m };
      if (scheme.twoLevel)
        ops.twoLevelScales(rt, { w: t, group, m: factored.m }, scale, { scaleDtype: scheme.scaleDtype });
      const sweep = (sweeps: number, products: OpParams = {}): void => {
        const params = { ...type, sweeps, ...products };
        if (keep) gptqOps.sparseDescend(rt, descent, { level, keep, changed: count }, params);
        else gptqOps.descend(rt, descent, level, count, params);
      };
      if (keep) gptqOps.sparseSolve(rt, problem, { level, keep }, type);
      else gptqOps.solve(rt, problem, level, type);
      // Coarse scale types cannot follow a refit.
      this.refine(isCoarse(scheme) ? undefined : descent, level, count, sweep, scheme);
      // Codes were chosen with fp32 scales; with the rounded ones a last sweep moves the few that should differ.
      const scales = rt.allocate(scheme.scaleDtype, [n, groups]);
      gptqOps.storeScales(rt, scale, scales, scale, info, globalScale ?? 1);
      if (options.rounds > 0) sweep(1);
      const codes = this.encode(level, factored.order, scheme.type);
      const mask = keep && this.encode(keep, factored.order, quantType('u1'));
      // Asked for together: the device is waited for once.
      const [damping, facts, stored, offsets] = await Promise.all([
        factored.info,
        readTyped<Float64Array>(rt, bad),
        readTyped<Float64Array>(rt, info),
        scheme.symmetric ? undefined : readTyped(rt, zero),
      ]);
      const [notFinite, first] = facts as unknown as [number, number];
      if (notFinite > 0) throw notFiniteWeights(name, k, notFinite, first);
      const [overflows, underflows] = stored as unknown as [number, number];
      if (overflows + underflows > 0) {
        const range = scaleRange(await readTyped(rt, scale), overflows, underflows);
        if (scalesMatter(scheme, range)) throw scaleRangeError(name, scheme, range);
      }
      const zeros = offsets && storedZeros(rt, scheme, offsets, [n, groups]);
      return {
        scheme,
        shape: [n, k],
        codes,
        scales,
        ...(zeros && { zeros }),
        ...(mask && { mask }),
        ...(globalScale !== undefined && { globalScale }),
        quality: {
          method: 'gptq',
          bitsPerWeight: bitsPerWeight(scheme, n, k),
          relativeError: null,
          damp: damping[0] as number,
          seconds: (performance.now() - started) / 1000,
          ...this.note(
            damping,
            factored.deadChannels,
            underflows > 0 ? smallScalesNote(scheme, underflows) : undefined,
          ),
        },
        measures: { dampAttempts: damping[1] as number },
      };
    } finally {
      for (const tensor of scratch) tensor.dispose();
    }
  }

  /** Parameters of the search for scales. */
  private search(scheme: QuantScheme, globalScale: number | undefined): OpParams {
    const { type, symmetric, scaleDtype } = scheme;
    const { options } = this;
    return {
      ...typeParams(type),
      symmetric,
      constantZero: constantZero(scheme),
      // Symmetric grids of 8 bits keep the full range (docs/internals/numerics.md).
      steps: type.bits >= 8 && symmetric ? 1 : options.clipSteps,
      bothSigns: options.bothSigns && !isCoarse(scheme) && type.kind === 'int' && symmetric,
      scaleDtype: isCoarse(scheme) ? scaleDtype : 'f32',
      scaleUnit: globalScale ?? 1,
      ...this.rough,
    };
  }

  /** Rounds of scale refit, if `refits` is given, and of coordinate descent. */
  private refine(
    refits: SolveInputs | undefined,
    level: Tensor,
    count: Tensor,
    sweep: (sweeps: number, products: OpParams) => void,
    { twoLevel, scaleDtype }: QuantScheme,
  ): void {
    const { rt, options } = this;
    const params = twoLevel ? { twoLevel: scaleDtype } : {};
    if (options.rounds === 0) return;
    const tm = refits && gptqOps.projected(rt, refits);
    for (let round = 0; round < options.rounds; round++) {
      if (refits) gptqOps.refit(rt, refits, level, count, tm, { ...params, ...this.rough });
      sweep(options.sweeps, this.rough);
    }
    if (refits) gptqOps.refit(rt, refits, level, count, tm, params);
    tm?.dispose();
  }

  dispose(): void {
    for (const pending of this.factored.values())
      pending.then(
        ({ order, u, m, dead, correction }) => {
          for (const tensor of [order, u, m, dead, correction]) tensor?.dispose();
        },
        () => {}, // solve() has thrown it already
      );
    this.factored.clear();
  }

  /** Levels f32 [N,K] in solving order as bitstream rows U8 [N, ceil(K*bits/8)]. */
  private encode(level: Tensor, order: Tensor, type: QuantType): Tensor {
    const { rt } = this;
    const [n, k] = level.shape as [number, number];
    const bytes = rt.allocate('u8', [n, k]);
    gptqOps.encode(rt, level, order, bytes, typeParams(type));
    const stream = rt.allocate('u8', [n, Math.ceil((k * type.bits) / 8)]);
    ops.packCodes(rt, bytes, stream, { bits: type.bits });
    bytes.dispose();
    return stream;
  }

  private factor(scheme: QuantScheme): Promise<Factored> {
    const { order } = this.options;
    const kind = order === 'group' ? `group ${printGranularity(scheme.granularity)}` : order;
    const key = scheme.sparsity ? `${kind} ${scheme.sparsity}` : kind;
    let pending = this.factored.get(key);
    if (!pending) {
      pending = this.runFactor(scheme);
      this.factored.set(key, pending);
    }
    return pending;
  }

  private async runFactor(scheme: QuantScheme): Promise<Factored> {
    const { rt, options } = this;
    const { h } = this.statistics;
    const k = h.shape[0] as number;
    const moments = rt.allocate('f64', [k]);
    ops.diagonal(rt, h, moments);
    const diagonal = await readTyped<Float64Array>(rt, moments);
    moments.dispose();
    const orderIndices = solvingOrder(options.order, diagonal, scheme.granularity, scheme.sparsity ? 4 : 1);
    const order = uploadTyped(rt, 'i32', [k], orderIndices);
    const u = rt.allocate('f32', [k, k]);
    const m = rt.allocate('f32', [k, k]);
    const dead = rt.allocate('u8', [k]);
    const info = rt.allocate('f64', [3]);
    gptqOps.factor(rt, h, order, { u, m, dead, info }, options.damp);
    const facts = readTyped<Float64Array>(rt, info).finally(() => info.dispose());
    facts.catch(() => {}); // solve() throws it
    const deadChannels = diagonal.reduce((sum, d) => sum + (d === 0 ? 1 : 0), 0);
    return { orderIndices, order, u, m, dead, info: facts, deadChannels };
  }

  /**
   * What gptq_target adds to a linear of n rows. A matrix that serves the whole feed costs as much as K rows without it. Which of
   * both it is does not depend on the rows at hand: devices that share them round alike.
   */
  private correction(factored: Factored, n: number) {
    const { rt, options } = this;
    const { drift } = this.statistics;
    if (!drift || options.alpha === 0) return undefined;
    const [k] = drift.shape as [number, number];
    if ((this.rows ?? n) < k) return { drift, u: factored.u, alpha: options.alpha };
    if (!factored.correction) {
      factored.correction = rt.allocate('f32', [k, k]);
      gptqOps.correction(rt, drift, factored.order, factored.u, factored.correction);
    }
    return { matrix: factored.correction, alpha: options.alpha };
  }

  /** NVFP4's second level: the largest scale that a group can ask for is stored as 448, the top of e4m3. */
  private async globalScale(t: Tensor, scheme: QuantScheme): Promise<number> {
    const most = (await readTyped(this.rt, t)).reduce((a, b) => Math.max(a, Math.abs(b)), 0);
    return Math.fround(most > 0 ? most / (448 * reach(scheme.type)) : 1);
  }

  private note(damping: Float64Array, deadChannels: number, more: string | undefined): { note?: string } {
    const [damp, attempts, floored] = damping as unknown as [number, number, number];
    const notes = more === undefined ? [] : [more];
    if (attempts > 1)
      notes.push(
        `damping raised from ${this.options.damp} to ${damp.toPrecision(2)} until the Hessian could be factored`,
      );
    if (floored > 0) notes.push(`${floored} small diagonal entries of the Hessian were raised to a floor`);
    if (deadChannels > 0) notes.push(`${deadChannels} input channels are always 0; lpq set their weights to 0`);
    return notes.length > 0 ? { note: notes.join('; ') } : {};
  }
}

/** Whether scales are of a type so coarse that they are searched among its values. */
const isCoarse = ({ scaleDtype }: QuantScheme) => scaleDtype === 'f8_e8m0' || scaleDtype === 'f8_e4m3';

/** Levels from the middle of a grid to its end, by the scale table of docs/internals/numerics.md: |w| <= reach * scale. */
function reach(type: QuantType): number {
  if (type.kind === 'int') return (2 ** type.bits - 1) / 2;
  let top = valueRange(type).max;
  while (top > 512) top /= 2;
  return top;
}

/** What rounding the scales to their dtype met; scale f32 [N,G] as stored. */
function scaleRange(scale: Float32Array, over: number, under: number): ScaleRange {
  const sizes = scale.map(Math.abs);
  const [smallestScale, largestScale] = [
    sizes.reduce((a, b) => Math.min(a, b)),
    sizes.reduce((a, b) => Math.max(a, b)),
  ];
  return { over, under, groups: scale.length, smallestScale, largestScale };
}
