import path from 'node:path';
import { bitsOfModule } from '../../formats/canonical/bits.js';
import type { CanonicalManifest, CanonicalModule, Quality } from '../../formats/canonical/schema.js';
import {
  type Measures,
  type Report,
  type ReportModule,
  type ScaleTrainingFacts,
  scaleTrainingSchema,
} from '../../formats/report/schema.js';

/** What a run tells of a module beyond its manifest entry. */
export interface ModuleFacts extends Partial<Quality> {
  readonly name: string;
  readonly scheme: string;
  readonly tokens: number | null;
  readonly seconds: number;
  readonly measures?: Measures;
}

/** What only the run itself knows. */
export interface RunFacts extends Pick<Report, 'stages' | 'waits' | 'machine'> {
  readonly modules: readonly ModuleFacts[];
  readonly seconds: number;
  readonly peakRss: number;
  readonly evaluations?: Report['evaluations'];
  readonly scaleTraining?: ScaleTrainingFacts | undefined;
}

/** A report of the quantized directory `dir`: of its manifest, and of the run that made it where that is known. */
export function buildReport(dir: string, manifest: CanonicalManifest, run?: RunFacts): Report {
  const facts = new Map(run?.modules.map((module) => [module.name, module]));
  const modules = Object.entries(manifest.modules).map(([name, module]) => moduleOf(name, module, facts.get(name)));
  const { lpq, source, method, options, calibration } = manifest.provenance;
  const weightsOf = ({ shape: [n, k] }: ReportModule) => n * k;
  const weights = modules.reduce((sum, module) => sum + weightsOf(module), 0);
  const weighted = (value: (module: ReportModule) => number | null) => {
    const known = modules.filter((module) => value(module) !== null);
    const total = known.reduce((sum, module) => sum + weightsOf(module), 0);
    return total === 0
      ? null
      : known.reduce((sum, module) => sum + (value(module) as number) * weightsOf(module), 0) / total;
  };
  const errors = modules.flatMap(({ relativeError }) => (relativeError === null ? [] : [relativeError]));
  return {
    format: 'lpq-report',
    version: 1,
    output: path.basename(path.resolve(dir)),
    ...{ lpq, source, method, options, calibration },
    totals: {
      modules: modules.length,
      weights,
      carriedTensors: Object.keys(manifest.carried).length,
      bitsPerWeight: weighted(({ bitsPerWeight }) => bitsPerWeight) ?? 0,
      relativeError: errors.length > 0 ? errors.reduce((a, b) => a + b, 0) / errors.length : null,
      int4Share: weighted(({ int4Share }) => int4Share),
      seconds: run?.seconds ?? null,
      peakRss: run?.peakRss ?? null,
    },
    modules,
    stages: run?.stages ?? [],
    waits: run?.waits ?? null,
    machine: run?.machine ?? null,
    evaluations: run?.evaluations ?? [],
    scaleTraining: run?.scaleTraining ? scaleTrainingSchema.parse(run.scaleTraining) : null,
  };
}

function moduleOf(name: string, module: CanonicalModule, facts: ModuleFacts | undefined): ReportModule {
  const { quality, activations } = module;
  const bits = activations?.bits;
  return {
    name,
    block: numberIn(/(?:^|\.)(\d+)\./, name),
    kind: name.split('.').at(-1) as string,
    expert: numberIn(/\.experts\.(\d+)\./, name),
    scheme: facts?.scheme ?? schemeOf(module),
    shape: module.shape,
    method: quality?.method ?? null,
    bitsPerWeight: quality?.bitsPerWeight ?? bitsOfModule(module),
    relativeError: quality?.relativeError ?? null,
    damp: quality?.damp ?? null,
    tokens: facts?.tokens ?? null,
    seconds: facts?.seconds ?? null,
    note: quality?.note ?? null,
    measures: facts?.measures ?? {},
    int4Share: bits ? bits.filter((width) => width === 4).length / bits.length : null,
  };
}

function numberIn(pattern: RegExp, name: string): number | null {
  const found = pattern.exec(name)?.[1];
  return found === undefined ? null : Number(found);
}

/** As the run's log would print it; for checkpoints that were read without their run. */
function schemeOf({ type, granularity, zeros, scales, sparsity }: CanonicalModule): string {
  return [
    type,
    ...(zeros.kind === 'int' || zeros.kind === 'float' ? ['asym'] : []),
    granularity.kind === 'channel' ? 'channel' : `g${granularity.size}`,
    ...(scales.dtype === 'f16' ? [] : [scales.dtype]),
    ...(sparsity === 'none' ? [] : [sparsity]),
  ].join(' ');
}
