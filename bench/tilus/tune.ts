import type { MeasuredRuntime, Tensor, TimedCall } from '../../native/binding.js';
import type { Settings } from '../../src/tilus/check/check.js';
import { type Buffer, buffersOf } from '../../src/tilus/device/buffers.js';
import { launchCall } from '../../src/tilus/device/launch.js';
import { type Noise, rotation } from '../kernels/operands.js';
import { median } from '../kernels/time.js';
import type { Contender } from './contenders.js';

/** Microseconds of a configuration. */
export interface Timed {
  readonly settings: Settings;
  us: number;
  readonly leastUs: number;
}

const PASSES = 5;
/** The few best are timed again in turns: differences of a percent are otherwise the device's mood. */
const [FINALISTS, ROUNDS] = [4, 3];

/** Memory of all contenders: each pointer as large as one of them wants it, the largest input in copies that exceed the cache. */
export class Buffers {
  readonly products: number;
  private readonly tensors = new Map<string, readonly Tensor[]>();
  private readonly written = new Set<string>();

  constructor(
    rt: MeasuredRuntime,
    noise: Noise,
    contenders: readonly Contender[],
    private readonly scalars: ReadonlyMap<string, number>,
    l2Bytes: number,
  ) {
    const wanted = new Map<string, Buffer>();
    for (const { launches } of contenders)
      for (const { program, pointers } of launches)
        for (const buffer of buffersOf(program, scalars)) {
          const name = pointers[buffer.name] ?? buffer.name;
          if (buffer.written) this.written.add(name);
          if (buffer.bytes >= (wanted.get(name)?.bytes ?? 0)) wanted.set(name, buffer);
        }
    const workspace = Math.max(
      0,
      ...contenders.flatMap(({ launches }) => launches.map(({ kernel }) => kernel.workspaceBytes)),
    );
    if (workspace > 0) this.tensors.set('workspace', [rt.allocate('u8', [workspace])]);
    const inputs = [...wanted].filter(([name]) => !this.written.has(name));
    const [largest, { bytes }] = inputs.reduce((a, b) => (b[1].bytes > a[1].bytes ? b : a));
    const { copies, products } = rotation(Math.max(1, bytes), l2Bytes);
    this.products = products;
    for (const [name, { dtype, bytes: size }] of wanted) {
      // A program may name a pointer that it does not touch.
      const shape = [Math.max(16, size)];
      const kind = dtype.quant || dtype.name === 'u8' ? 'codes' : 'numbers';
      const count = name === largest ? copies : 1;
      this.tensors.set(
        name,
        Array.from({ length: count }, (_, i) => noise.fill(kind, 'u8', shape, i + 1)),
      );
    }
  }

  /** The calls of one pass. */
  calls({ launches }: Contender): TimedCall[] {
    return Array.from({ length: this.products }, (_, turn) =>
      launches.map(({ pointers, ...compiled }) => {
        const tensors = new Map(
          compiled.program.parameters
            .filter(({ pointer }) => pointer)
            .map(({ name }) => {
              const copies = this.tensors.get(pointers[name] ?? name)!;
              return [name, copies[turn % copies.length]!];
            }),
        );
        const [workspace] = compiled.kernel.workspaceBytes > 0 ? this.tensors.get('workspace')! : [];
        return launchCall(compiled, { tensors, scalars: this.scalars, ...(workspace && { workspace }) });
      }),
    ).flat();
  }

  dispose(): void {
    for (const copies of this.tensors.values()) for (const tensor of copies) tensor.dispose();
  }
}

/** Times one contender: the median of passes over rotated inputs, in microseconds of a product. */
export async function timeContender(
  rt: MeasuredRuntime,
  buffers: Buffers,
  contender: Contender,
  passes = PASSES,
): Promise<{ us: number; leastUs: number }> {
  const scale = 1e6 / buffers.products;
  const seconds = await rt.time(buffers.calls(contender), { passes });
  return { us: median(seconds) * scale, leastUs: Math.min(...seconds) * scale };
}

/** Times all contenders, and the best of them again in turns. Returns them with the fastest first. `onTimed` may throw. */
export async function timeContenders(
  rt: MeasuredRuntime,
  buffers: Buffers,
  contenders: readonly Contender[],
  onTimed: (done: number) => void = () => {},
): Promise<Timed[]> {
  const timed: (Timed & { contender: Contender })[] = [];
  for (const [i, contender] of contenders.entries()) {
    timed.push({ settings: contender.settings, contender, ...(await timeContender(rt, buffers, contender)) });
    onTimed(i + 1);
  }
  timed.sort((a, b) => a.us - b.us);
  const finalists = timed.slice(0, FINALISTS);
  const rounds = finalists.map((): number[] => []);
  for (let round = 0; round < ROUNDS; round++)
    for (const [i, { contender }] of finalists.entries())
      rounds[i]!.push((await timeContender(rt, buffers, contender)).us);
  for (const [i, each] of finalists.entries()) each.us = median(rounds[i]!);
  timed.sort((a, b) => a.us - b.us);
  return timed.map(({ contender: _, ...rest }) => rest);
}
