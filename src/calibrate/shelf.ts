import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { Batch, BlockState } from '../model/program.js';

/** Routing tables and scales stay on the device, wherever the rest goes. */
const SMALL_BYTES = 2 ** 20;

/** A tensor between two sweeps: on the device, or parked in pinned memory of the host. */
class Shelved {
  private near: Tensor | undefined;

  constructor(
    private readonly rt: NativeRuntime,
    private home: Tensor,
    private parked = false,
  ) {}

  get bytes(): number {
    return this.home.byteLength;
  }

  get residentBytes(): number {
    return this.parked ? 0 : this.bytes;
  }

  /** The same tensor, for who does not change it. */
  twin(): Shelved {
    return new Shelved(this.rt, this.home.view(this.home.shape), this.parked);
  }

  /** Begins to fetch a parked tensor. */
  prefetch(): void {
    if (this.parked) this.near ??= this.rt.restore(this.home);
  }

  /** The tensor on the device; it stays this object's, and there until settle(). */
  get(): Tensor {
    this.prefetch();
    return this.near ?? this.home;
  }

  /** Says where the tensor waits for the next sweep. */
  settle(resident: boolean): void {
    if (resident && this.near) {
      this.home.dispose();
      [this.home, this.near, this.parked] = [this.near, undefined, false];
    } else if (!resident && !this.parked && this.bytes > SMALL_BYTES) {
      const away = this.rt.park(this.home);
      this.home.dispose();
      [this.home, this.parked] = [away, true];
    }
    this.leave();
  }

  /** Lets go of what get() fetched; the tensor waits where it did. */
  leave(): void {
    this.near?.dispose();
    this.near = undefined;
  }

  dispose(): void {
    this.near?.dispose();
    this.home.dispose();
  }
}

/** What a state consists of between two sweeps. */
interface Parts {
  readonly h: Shelved;
  readonly scale: Shelved | undefined;
  readonly aux: ReadonlyMap<string, Shelved>;
  readonly carried: ReadonlyMap<string, Shelved>;
}

/**
 * The state of one batch between two sweeps. On a device the residual stream is kept as f16 rows with a power-of-two
 * scale each: half the memory and half the traffic. That rounds it by at most 2^-11 of an element, an eighth of what rounding the
 * inputs of the linears to bf16 does, and always, so that the bytes of a result do not depend on how much memory there is.
 */
export class ShelvedState {
  private h: Shelved;
  private scale: Shelved | undefined;
  private aux: ReadonlyMap<string, Shelved>;
  private carried: ReadonlyMap<string, Shelved>;
  private batch: Batch;

  /** Takes the state's tensors over, or what another state's are kept as. */
  constructor(
    private readonly rt: NativeRuntime,
    state: BlockState,
    parts?: Parts,
  ) {
    this.batch = state.batch;
    [this.h, this.scale] = parts ? [parts.h, parts.scale] : this.shelve(state.h);
    this.aux = parts?.aux ?? this.shelveAll(state.aux);
    this.carried = parts?.carried ?? this.shelveAll(state.carried ?? {});
  }

  /** A second one with the same contents. On a device what waits is never changed, and both share it. */
  twin(): ShelvedState {
    const { rt, batch, h, scale } = this;
    if (!scale) return new ShelvedState(rt, this.copy());
    const [aux, carried] = [this.aux, this.carried].map(
      (held) => new Map([...held].map(([name, tensor]) => [name, tensor.twin()])),
    ) as [Map<string, Shelved>, Map<string, Shelved>];
    return new ShelvedState(rt, { batch } as BlockState, { h: h.twin(), scale: scale.twin(), aux, carried });
  }

  /** Bytes that it takes on the device now. */
  get residentBytes(): number {
    let sum = 0;
    for (const tensor of this.tensors()) sum += tensor.residentBytes;
    return sum;
  }

  /** Bytes that it takes on the device when it waits there. */
  get bytes(): number {
    let sum = 0;
    for (const tensor of this.tensors()) sum += tensor.bytes;
    return sum;
  }

  get tokens(): number {
    return this.batch.tokens;
  }

  get streamBytes(): number {
    return this.h.bytes;
  }

  prefetch(): void {
    for (const tensor of this.tensors()) tensor.prefetch();
  }

  /**
   * The state on the device, for stages to consume. `last`: nobody opens it again before replace(), so that it need not be
   * copied; on a device unpacking copies in any case.
   */
  open(last: boolean): BlockState {
    const { rt } = this;
    const stored = this.h.get();
    let h: Tensor;
    if (this.scale) {
      h = rt.allocate('f32', stored.shape);
      ops.unpackRows(rt, stored, this.scale.get(), h);
    } else if (last) {
      h = stored.view(stored.shape);
    } else {
      h = rt.allocate('f32', stored.shape);
      ops.cast(rt, stored, h);
    }
    const [aux, carried] = [this.aux, this.carried].map((held) => {
      const views = [...held].map(([name, tensor]) => {
        const near = tensor.get();
        return [name, near.view(near.shape)] as const;
      });
      return Object.fromEntries(views);
    }) as [Record<string, Tensor>, Record<string, Tensor>];
    return { batch: this.batch, h, aux, ...(this.carried.size > 0 && { carried }) };
  }

  /** A state with the same contents, while this one waits where it does. */
  copy(): BlockState {
    const state = this.open(false);
    for (const tensor of this.tensors()) tensor.leave();
    return state;
  }

  /** Takes over the state that stages have made of open()'s. */
  replace(state: BlockState): void {
    const old = [...this.tensors()];
    this.batch = state.batch;
    [this.h, this.scale] = this.shelve(state.h);
    this.aux = this.shelveAll(state.aux);
    this.carried = this.shelveAll(state.carried ?? {});
    for (const tensor of old) tensor.dispose();
  }

  settle(resident: boolean): void {
    for (const tensor of this.tensors()) tensor.settle(resident);
  }

  dispose(): void {
    for (const tensor of this.tensors()) tensor.dispose();
  }

  private *tensors(): Generator<Shelved> {
    yield this.h;
    if (this.scale) yield this.scale;
    yield* this.aux.values();
    yield* this.carried.values();
  }

  private shelve(h: Tensor): [Shelved, Shelved | undefined] {
    const { rt } = this;
    if (rt.device === 'cpu') return [new Shelved(rt, h), undefined];
    const rows = rt.allocate('f16', h.shape);
    const scale = rt.allocate('f32', [h.shape[0] as number]);
    ops.packRows(rt, h, rows, scale);
    h.dispose();
    return [new Shelved(rt, rows), new Shelved(rt, scale)];
  }

  private shelveAll(aux: Readonly<Record<string, Tensor>>): ReadonlyMap<string, Shelved> {
    return new Map(Object.entries(aux).map(([name, tensor]) => [name, new Shelved(this.rt, tensor)]));
  }
}
