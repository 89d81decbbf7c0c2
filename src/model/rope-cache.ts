import { type NativeRuntime, type Tensor, uploadTyped } from '../../native/binding.js';
import type { Rotation } from '../../native/cache-ops.js';
import type { Batch } from './program.js';
import { dependsOnLength, type RopeSpec } from './rope.js';
import { type RopeTables, ropeTables, ropeTablesByToken } from './rope-tables.js';

interface Resident {
  readonly host: RopeTables;
  readonly cos: Tensor;
  readonly sin: Tensor;
}

/** Rotary tables of a graph for each runtime, shared by the blocks with the same spec, grown when a batch reaches further. */
export class RopeCache {
  private readonly tables = new WeakMap<NativeRuntime, Map<string, Resident>>();
  private readonly byToken = new WeakMap<Batch, Map<string, Rotation>>();

  /** Tables for a batch, on the runtime's device. They live as long as the graph, those of a long batch as it does. */
  forBatch(rt: NativeRuntime, spec: RopeSpec, batch: Batch): Rotation {
    if (dependsOnLength(spec, batch.longest)) return this.ofTokens(rt, spec, batch);
    const { cos, sin } = this.upTo(rt, spec, batch.longest);
    const { rotary, style } = spec;
    return { cos, sin, positions: batch.positions, rotary, style };
  }

  private upTo(rt: NativeRuntime, spec: RopeSpec, positions: number): Resident {
    const tables = this.tables.get(rt) ?? new Map<string, Resident>();
    this.tables.set(rt, tables);
    const key = JSON.stringify(spec);
    const found = tables.get(key);
    if (found && found.host.positions >= positions) return found;
    // Doubling keeps the number of rebuilds small.
    const host = ropeTables(spec, 2 ** Math.ceil(Math.log2(Math.max(positions, 64))));
    const made = { host, cos: rt.upload(host.cos), sin: rt.upload(host.sin) };
    tables.set(key, made);
    return made;
  }

  private ofTokens(rt: NativeRuntime, spec: RopeSpec, batch: Batch): Rotation {
    const made = this.byToken.get(batch) ?? new Map<string, Rotation>();
    this.byToken.set(batch, made);
    const key = JSON.stringify(spec);
    const found = made.get(key);
    if (found) return found;
    const { cos, sin } = ropeTablesByToken(spec, batch.lengths);
    const tables = {
      cos: rt.upload(cos),
      sin: rt.upload(sin),
      positions: uploadTyped(
        rt,
        'i32',
        [batch.tokens],
        Int32Array.from({ length: batch.tokens }, (_, t) => t),
      ),
      rotary: spec.rotary,
      style: spec.style,
    };
    made.set(key, tables);
    return tables;
  }
}
