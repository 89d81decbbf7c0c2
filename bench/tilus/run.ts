import { availableParallelism } from 'node:os';
import type { MeasuredRuntime } from '../../native/binding.js';
import type { QuantType } from '../../src/core/quant-type.js';
import { program } from '../../src/tilus/programs.js';
import type { GemmShape } from '../kernels/cases.js';
import { denseOperands, Noise, type Operands, packedOperands } from '../kernels/operands.js';
import type { Variant } from '../kernels/schema.js';
import { timeProduct } from '../kernels/time.js';
import { gpuOf } from '../machine.js';
import { type BenchEvents, benchRecord, secondsSince } from '../record.js';
import { buildContenders, type Contender, sumAfter } from './contenders.js';
import type { ProgramBench, ProgramRow } from './schema.js';
import { SPACES, type SpaceName } from './space.js';
import { Buffers, timeContender, timeContenders } from './tune.js';

/** Configurations that a row names. */
const FASTEST = 8;

export interface ProgramBenchRequest {
  readonly program: SpaceName;
  readonly types: readonly QuantType[];
  readonly shapes: readonly GemmShape[];
  readonly tokens: readonly number[];
  /** 32, 64, 128, or 0 for one scale a column. */
  readonly group: number;
  readonly passes: number;
  /** Whose shared memory programs must fit. */
  readonly arch: 80 | 86 | 89 | 90;
  /** For nvcc's files. */
  readonly folder: string;
  readonly lpq: string;
}

/** Times a program in the configurations of its space, f16 activations, beside hand-written kernels and cuBLAS in turns. */
export async function benchPrograms(
  rt: MeasuredRuntime,
  request: ProgramBenchRequest,
  events: BenchEvents<ProgramRow> = {},
): Promise<ProgramBench> {
  const started = performance.now();
  const noise = new Noise(rt);
  const rows: ProgramRow[] = [];
  const tuning: ProgramBench['tuning'] = [];
  const { program: name, types, shapes, tokens, group, passes, lpq } = request;
  const total = types.length * shapes.length * tokens.length;
  try {
    for (const type of types)
      for (const shape of shapes) {
        const bench = new ShapeBench(rt, noise, type, shape, request);
        const step = (what: string) =>
          events.onStep?.(`${type.name} ${shape.k}x${shape.n}: ${what}`, rows.length, total);
        for (const row of await bench.rows(step)) {
          rows.push(row);
          events.onRow?.(row);
        }
        tuning.push(bench.tuning);
      }
  } finally {
    noise.dispose();
  }
  const settings = { group: group === 0 ? ('channel' as const) : group, passes };
  return { ...benchRecord('lpq-program-bench', rt, lpq, started), program: name, settings, rows, tuning };
}

/** A weight, at all numbers of tokens: those that share a space share its kernels. */
class ShapeBench {
  readonly tuning: ProgramBench['tuning'][number];

  constructor(
    private readonly rt: MeasuredRuntime,
    private readonly noise: Noise,
    private readonly type: QuantType,
    private readonly shape: GemmShape,
    private readonly request: ProgramBenchRequest,
  ) {
    const seconds = { checkSeconds: 0, compileSeconds: 0, timeSeconds: 0 };
    this.tuning = { type: type.name, ...shape, compiled: 0, refused: 0, jobs: availableParallelism(), ...seconds };
  }

  async rows(step: (what: string) => void): Promise<ProgramRow[]> {
    const rows: ProgramRow[] = [];
    let [key, contenders]: [string, readonly Contender[]] = ['', []];
    for (const m of this.request.tokens) {
      const space = this.space(m);
      if (JSON.stringify(space) !== key) {
        key = JSON.stringify(space);
        contenders = await this.build(space, step);
      }
      rows.push(await this.row(m, contenders, step));
    }
    return rows;
  }

  private space(m: number) {
    const { program: name, group } = this.request;
    return SPACES[name]({ type: this.type.name, ...this.shape, m, group });
  }

  private async build(space: ReturnType<ShapeBench['space']>, step: (what: string) => void) {
    const { program: name, arch, folder } = this.request;
    const deviceArch = gpuOf(this.rt)!.arch;
    const built = await buildContenders({
      ...{ source: program(name), all: space, arch, deviceArch, after: sumAfter },
      folder: `${folder}/${this.type.name}-${this.shape.k}-${this.shape.n}-${this.tuning.compiled}`,
      onBuilt: (done, total) => step(`compiled ${done} of ${total}`),
    });
    this.tuning.compiled += built.contenders.length;
    this.tuning.refused += built.refused.length;
    this.tuning.checkSeconds += built.checkSeconds;
    this.tuning.compileSeconds += built.compileSeconds;
    return built.contenders;
  }

  private async row(m: number, contenders: readonly Contender[], step: (what: string) => void): Promise<ProgramRow> {
    const { rt, noise, type, shape, request } = this;
    const l2Bytes = gpuOf(rt)!.l2;
    const started = performance.now();
    const buffers = new Buffers(rt, noise, contenders, new Map([['m', m]]), l2Bytes);
    const peers: Operands[] = [];
    const operands = (made: Operands): Operands => {
      peers.push(made);
      return made;
    };
    try {
      const timed = await timeContenders(rt, buffers, contenders, (done) =>
        step(`M=${m}, timed ${done} of ${contenders.length}`),
      );
      const { settings } = timed[0]!;
      this.tuning.timeSeconds += secondsSince(started);
      const best = contenders.find((each) => each.settings === settings)!;
      const setting = { type, dtype: 'f16' as const, group: request.group, ...shape, l2Bytes };
      const packed = operands(packedOperands(noise, rt, setting));
      const dense = operands(denseOperands(noise, rt, setting));
      const timeOf = async (of: Operands, params: Variant = {}) => {
        try {
          return (await timeProduct(rt, of, m, { passes: request.passes, params })).us;
        } catch (error) {
          // Of kernels that this device or this type does not have.
          if (!['LPQ_NATIVE_ARGUMENT', 'LPQ_CUDA_KERNELS'].includes((error as { code?: string }).code ?? ''))
            throw error;
          return null;
        }
      };
      step(`M=${m}, beside others`);
      const portable = { kernel: 'portable', tuned: 0 };
      const first = [await timeOf(packed, portable), await timeOf(packed)];
      const time = await timeContender(rt, buffers, best, request.passes);
      const second = [await timeOf(packed, portable), await timeOf(packed)];
      const [portableUs, choiceUs] = first.map((each, i) => (each === null ? null : Math.min(each, second[i]!)));
      return {
        ...{ type: type.name, ...shape, m, ...time, settings: { ...settings }, timed: timed.length },
        fastest: timed.slice(0, FASTEST).map(({ us, settings: each }) => ({ us, settings: { ...each } })),
        ...{ portableUs: portableUs!, choiceUs: choiceUs!, cublasUs: await timeOf(dense) },
      };
    } finally {
      buffers.dispose();
      for (const each of peers) each.dispose();
    }
  }
}
