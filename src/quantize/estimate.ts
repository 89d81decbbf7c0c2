import { statSync } from 'node:fs';
import path from 'node:path';
import type { CanonicalManifest } from '../../formats/canonical/schema.js';
import type { SourceCheckpoint } from '../../formats/canonical/source.js';
import { moduleTensors } from '../../formats/canonical/tensors.js';
import { plannedBytes } from '../../formats/canonical/write.js';
import { isWeightFile } from '../../formats/directory/carry.js';
import { listFiles } from '../../formats/directory/output-directory.js';
import { readConfigText } from '../../formats/safetensors/checkpoint.js';
import { openBlocks } from '../model/graph.js';
import type { Feed, ModelGraph } from '../model/program.js';
import { bitsPerWeight } from './grid.js';
import { blockMemory, DEVICE_BATCH_TOKENS } from './memory-plan.js';
import { modelPart } from './model-part.js';
import { plannedModules, planQuantization } from './plan.js';
import type { QuantizeRequest } from './run.js';
import { SourceView } from './source-view.js';

type Request = Pick<QuantizeRequest, 'scheme' | 'rules' | 'lmHead' | 'mtp' | 'shard' | 'blocks'>;

/** What a run will take, in bytes. */
export interface Estimate {
  /** The finished directory; the weight files to the byte, the rest to a few. */
  readonly output: number;
  /** Resident memory at most. */
  readonly rss: number;
  /** Device memory that activations, statistics and weights ask for; what a device lacks waits in host memory instead. */
  readonly device: number;
}

/** How much calibration data a run holds; undefined: the method takes none. */
export interface CalibrationSize {
  readonly tokens: number;
  /** The method also runs the unquantized model. */
  readonly original: boolean;
  readonly kind: 'activations' | 'statistics';
}

/** Size of a quantized directory, or of a shard of it, before it is made. Throws what planning throws. */
export async function outputBytes(checkpoint: SourceCheckpoint, request: Request): Promise<number> {
  const source = new SourceView(checkpoint);
  const all = plannedModules(checkpoint, request);
  const graph = openBlocks(source, request.mtp);
  const plan = planQuantization(graph, request);
  const mine = modelPart(graph, request.shard, request.blocks);
  const modules = new Map([...all].filter(([name]) => mine.module(name)));
  const weights = new Set([...all.keys()].map((name) => `${name}.weight`));
  const carried = [...source.names()].filter((name) => !weights.has(name)).filter(mine.carried);
  const tensors = plannedBytes({ modules, carried: carried.map((name) => source.spec(name)) });
  const config = Buffer.byteLength(readConfigText(source.dir, source.config));
  const hash = '0'.repeat(64);
  const entries = [...modules].map(([name, module]): [string, CanonicalManifest['modules'][string]] => {
    const { linear, scheme } = plan.get(name) as NonNullable<ReturnType<typeof plan.get>>;
    const sha256 = Object.fromEntries([...moduleTensors(name, module).keys()].map((part) => [part, hash]));
    // Sixteen digits of an error and a damping: what such numbers mostly have.
    const quality = {
      ...{ method: 'gptq', bitsPerWeight: bitsPerWeight(scheme, linear.n, linear.k) },
      ...{ relativeError: 0.1234567890123456, damp: 0.01 },
    };
    return [name, { ...module, sha256, quality }];
  });
  const manifest = {
    modules: Object.fromEntries(entries),
    carried: Object.fromEntries(carried.map((name) => [name, hash])),
  };
  const provenance = 1200;
  return tensors + json(manifest) + config + 200 + provenance + (await otherFiles(checkpoint.dir));
}

function json(value: unknown): number {
  return Buffer.byteLength(JSON.stringify(value, null, 2));
}

/** Tokenizer, templates and the like, which go through. */
async function otherFiles(dir: string): Promise<number> {
  let bytes = 0;
  for (const file of await listFiles(dir))
    if (!isWeightFile(file) && file !== 'config.json' && !file.split('/').some((part) => part.startsWith('.')))
      bytes += statSync(path.join(dir, file)).size;
  return bytes;
}

/** The process before it has done anything: Node.js, the addon, its threads. */
const BASE_BYTES = 95e6;
/** The text while it is cut, which JavaScript's heap keeps. The tokenizer's tables lie in a process of their own (calibrate/confined). */
const TEXT_BYTES = 20e6;
/** Modules that wait for the disk. */
const BEHIND_BYTES = 2 ** 28;
const CPU_BATCH_TOKENS = 4096;

/** Memory of a run: formulas of what is held at its fullest, measured on runs of the CPU (docs/preflight.md). */
export function memoryOf(
  graph: ModelGraph,
  sourceBytes: number,
  calibration: CalibrationSize | undefined,
  onDevice: boolean,
): Pick<Estimate, 'rss' | 'device'> {
  const { hidden } = graph;
  const streams = calibration?.original ? 2 : 1;
  const needs = graph.blocks.map((block) => {
    const memory = blockMemory(block, hidden, streams, 0, onDevice ? 2 : 1);
    const most = (pick: 'statistics' | 'solver' | 'temporaries') =>
      Math.max(...block.stages.map((s) => memory[pick](s)));
    return {
      weights: memory.weights,
      statistics: most('statistics'),
      solver: most('solver'),
      temporaries: most('temporaries'),
    };
  });
  const top = (pick: (need: (typeof needs)[number]) => number) => Math.max(...needs.map(pick));
  const weights = top((need) => need.weights);
  if (!calibration) {
    // Modules in flight, their results and what waits for the disk; mapped pages of the source are let go of behind it.
    const flight = Math.min(2 ** 28, weights * graph.blocks.length);
    return { rss: BASE_BYTES + Math.min(sourceBytes, 3 * flight + BEHIND_BYTES), device: onDevice ? 4 * flight : 0 };
  }
  // Per token the residual stream, what attention leaves and what the MLP's last linear reads wait for the next sweep.
  const wide = Math.max(
    hidden,
    ...graph.blocks.flatMap(({ stages }) => stages.flatMap(({ feeds }) => feeds.map(denseInput))),
  );
  const kept = onDevice ? hidden : 2 * hidden + wide;
  const states = calibration.kind === 'activations' ? 4 * kept * calibration.tokens * (streams > 1 ? 1.5 : 1) : 0;
  const active = calibration.kind === 'activations' ? 1 : 0;
  const device = top(
    (need) => 3 * need.weights + Math.max(need.statistics + need.solver, need.statistics + active * need.temporaries),
  );
  if (onDevice) {
    const host = BASE_BYTES + TEXT_BYTES + 2 * weights + BEHIND_BYTES + 4 * calibration.tokens;
    // What the last stage of a block reads waits beside the states, in 16 bits, where there is room; experts gather theirs anew.
    const last = Math.max(0, ...graph.blocks.flatMap(({ stages }) => (stages.at(-1)?.feeds ?? []).map(denseInput)));
    return { rss: host, device: device + states + active * 2 * last * calibration.tokens + 0.75 * 2 ** 30 };
  }
  // The CPU computes in f32, one batch at a time, and batches are half as long.
  const batch = Math.min(1, calibration.tokens / CPU_BATCH_TOKENS) * (CPU_BATCH_TOKENS / DEVICE_BATCH_TOKENS);
  const working = top(
    (need) => 3 * need.weights + need.statistics + Math.max(need.solver, active * need.temporaries * batch),
  );
  const written = Math.min(sourceBytes, BEHIND_BYTES);
  return { rss: BASE_BYTES + TEXT_BYTES + states + working + written, device: 0 };
}

/** Input features of a feed that every token reaches; 0 for an expert's. */
function denseInput({ linears }: Feed): number {
  return linears[0]?.expert === undefined ? (linears[0]?.k ?? 0) : 0;
}
