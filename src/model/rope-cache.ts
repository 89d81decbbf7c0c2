import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { type RopeSpec, type RopeTables, ropeTables } from './rope.js';

interface Resident {
  readonly host: RopeTables;
  readonly cos: Tensor;
  readonly sin: Tensor;
}

/** Rotary tables of a graph for each runtime, shared by the blocks with the same spec, grown when a batch reaches further. */
export class RopeCache {
  private readonly tables = new WeakMap<NativeRuntime, Map<string, Resident>>();

  /** Tables of at least `positions` positions, on the runtime's device. They live as long as the graph. */
  upTo(rt: NativeRuntime, spec: RopeSpec, positions: number): { readonly cos: Tensor; readonly sin: Tensor } {
    const tables = this.tables.get(rt) ?? new Map<string, Resident>();
    this.tables.set(rt, tables);
    const key = JSON.stringify(spec);
    const found = tables.get(key);
    if (found && found.host.positions >= positions) return found;
    // Doubling keeps the number of rebuilds small; a scaling with a length of its own must not be asked for more.
    const room = spec.scaling.kind === 'dynamic' ? positions : 2 ** Math.ceil(Math.log2(Math.max(positions, 64)));
    const host = ropeTables(spec, room);
    const made = { host, cos: rt.upload(host.cos), sin: rt.upload(host.sin) };
    tables.set(key, made);
    return made;
  }
}
