import { type RopeSpec, type RopeTables, ropeTables } from './rope.js';

/** Rotary tables of a graph, shared by the blocks with the same spec, grown when a batch reaches further. */
export class RopeCache {
  private readonly tables = new Map<string, RopeTables>();

  /** Tables of at least `positions` positions. They live as long as the graph. */
  upTo(spec: RopeSpec, positions: number): RopeTables {
    const key = JSON.stringify(spec);
    const found = this.tables.get(key);
    if (found && found.positions >= positions) return found;
    // Doubling keeps the number of rebuilds small; a scaling with a length of its own must not be asked for more.
    const room = spec.scaling.kind === 'dynamic' ? positions : 2 ** Math.ceil(Math.log2(Math.max(positions, 64)));
    const made = ropeTables(spec, room);
    this.tables.set(key, made);
    return made;
  }
}
