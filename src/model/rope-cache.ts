import { type NativeRuntime, type Tensor, uploadTyped } from '../../native/binding.js';
import type { Rotation } from '../../native/cache-ops.js';
import type { TemperaturePlan } from './plan-attention.js';
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
  private readonly warm = new WeakMap<NativeRuntime, Map<string, Tensor>>();
  private readonly byToken = new WeakMap<Batch, Map<string, Rotation>>();

  /** Tables for a batch, on the runtime's device. They live as long as the graph, those of a long batch as it does. */
  forBatch(rt: NativeRuntime, spec: RopeSpec, batch: Batch): Rotation {
    if (dependsOnLength(spec, batch.longest)) return this.ofTokens(rt, spec, batch);
    const { cos, sin } = this.upTo(rt, spec, batch.longest);
    const { rotary, style } = spec;
    return { cos, sin, positions: batch.positions, rotary, style };
  }

  /** f32 [P, 1] by position, for at least `positions` of them; it lives as long as the graph. */
  temperatures(rt: NativeRuntime, { beta, length, offset }: TemperaturePlan, positions: number): Tensor {
    const tables = this.warm.get(rt) ?? new Map<string, Tensor>();
    this.warm.set(rt, tables);
    const key = JSON.stringify([beta, length, offset]);
    const found = tables.get(key);
    if (found && (found.shape[0] as number) >= positions) return found;
    const count = 2 ** Math.ceil(Math.log2(Math.max(positions, 64)));
    const scales = Float32Array.from(
      { length: count },
      (_, position) => 1 + beta * Math.log1p(Math.floor((position + offset) / length)),
    );
    const made = uploadTyped(rt, 'f32', [count, 1], scales);
    tables.set(key, made);
    return made;
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
