import { type NativeRuntime, type Recording, readTyped, type Tensor, typed } from '../../native/binding.js';
import type { Cache } from './cache.js';
import type { ResidentModel } from './resident.js';
import { disposeStep, type Entry, makeStep, runStep, type Step } from './step.js';

/** Recordings that did not match the one before, after which steps of the same tensors are not recorded any more. */
const ATTEMPTS = 3;

/**
 * Steps of one token of some sequences, each step behind the last. On the CPU a step whose calls are those of the step before is
 * recorded, and repeated with other numbers in the tensors of the step, so that JavaScript takes no time from the processors that
 * compute.
 */
export class TokenSteps {
  private held: Held | undefined;

  constructor(
    private readonly rt: NativeRuntime,
    private readonly model: ResidentModel,
    private readonly cache: Cache,
  ) {}

  /** f32 [B,V], the logits after each entry's token, until the next call. Throws what runStep throws. */
  async logits(entries: readonly Entry[]): Promise<Float32Array> {
    const held = this.holding(entries);
    if (held) return this.repeated(held, entries);
    const step = makeStep(this.rt, entries);
    try {
      const logits = await runStep(this.rt, this.model, this.cache, step);
      const values = await readTyped(this.rt, logits);
      logits.dispose();
      return values;
    } finally {
      disposeStep(step);
    }
  }

  dispose(): void {
    if (this.held) release(this.held);
    this.held = undefined;
  }

  /** The step that the entries are written into; undefined where steps cannot be repeated. */
  private holding(entries: readonly Entry[]): Held | undefined {
    const longest = entries.reduce((most, { past }) => Math.max(most, past + 1), 0);
    if (this.held && (this.held.step.entries.length !== entries.length || this.held.step.longest < longest))
      this.dispose();
    if (this.held || this.rt.device !== 'cpu') return this.held;
    const step = makeStep(this.rt, entries);
    this.cache.begin(step);
    if (this.cache.room === 0) {
      disposeStep(step);
      return undefined;
    }
    this.held = { step: { ...step, longest: Math.max(step.longest, this.cache.room) }, left: ATTEMPTS };
    return this.held;
  }

  private async repeated(held: Held, entries: readonly Entry[]): Promise<Float32Array> {
    write(held.step, entries);
    if (held.repeat) {
      this.rt.replay(held.repeat.recording);
      return readTyped(this.rt, held.repeat.logits);
    }
    const tries = held.left > 0;
    if (tries) this.rt.record();
    const step = { ...held.step, entries, earlier: entries.map(({ past }) => past) };
    const logits = await runStep(this.rt, this.model, this.cache, step);
    const recording = tries ? this.rt.recorded() : undefined;
    if (recording && held.before?.matches(recording)) held.repeat = { recording, logits };
    else if (tries) held.left--;
    held.before?.dispose();
    held.before = held.repeat ? undefined : recording;
    const values = await readTyped(this.rt, logits);
    if (!held.repeat) logits.dispose();
    return values;
  }
}

interface Held {
  /** With the longest sequence that the cache has room for. */
  readonly step: Step;
  /** Recordings still to be tried. */
  left: number;
  before?: Recording | undefined;
  repeat?: { readonly recording: Recording; readonly logits: Tensor };
}

/** Nothing computes with the step's tensors: the logits of the last one have been read. */
function write({ ids, positions, totals, slots, hostIds }: Step, entries: readonly Entry[]): void {
  const put = (tensor: Tensor, of: (entry: Entry) => number) => typed<Int32Array>(tensor).set(entries.map(of));
  put(ids, (entry) => entry.ids[0] as number);
  put(positions, ({ past }) => past);
  put(totals, ({ past }) => past + 1);
  put(slots, ({ slot }) => slot);
  hostIds.set(entries.map((entry) => entry.ids[0] as number));
}

function release({ step, before, repeat }: Held): void {
  disposeStep(step);
  before?.dispose();
  repeat?.recording.dispose();
  repeat?.logits.dispose();
}
