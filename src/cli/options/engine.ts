import path from 'node:path';
import type { Command } from 'commander';
import type { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import type { CanonicalModule } from '../../../formats/canonical/schema.js';
import type { NativeRuntime } from '../../../native/binding.js';
import { quantType } from '../../core/quant-type.js';
import type { Engine, EngineModel, Evidence } from '../../engines/engine.js';
import type { QuantScheme } from '../../quantize/scheme.js';
import { progress, type Run } from '../run.js';
import { line } from '../terminal/terminal.js';
import { requireKind } from './sources.js';

/** The flags of --for, unchecked. */
export interface EngineFlags {
  readonly for?: string;
  readonly untested?: boolean;
}

/** Options that name the engine which is to load what comes out. */
export function engineOptions(command: Command): Command {
  return command
    .optionsGroup('Engine:')
    .option(
      '--for <engine>',
      'the engine that will load it: vllm, sglang, transformers, lmdeploy, tensorrt-llm, llama.cpp, vllm+lpq or lpq',
    )
    .option('--untested', 'with --for: allow an engine that never ran with output of lpq');
}

/** The engine that --for names. Throws LPQ_USAGE, LPQ_ENGINE. */
export async function engineOf(flags: EngineFlags): Promise<Engine | undefined> {
  const { LpqError } = await import('../../core/error.js');
  if (flags.for === undefined) {
    if (flags.untested) throw new LpqError('LPQ_USAGE', '--untested has no effect without --for');
    return undefined;
  }
  return (await import('../../engines/index.js')).engineNamed(flags.for, flags.untested === true);
}

/** The facts of a model that engines depend on, from its config.json and tensors. */
export async function engineModel(
  config: Readonly<Record<string, unknown>>,
  tensors: Iterable<string>,
): Promise<EngineModel> {
  const { knownArchitecture } = await import('../../model/architectures/index.js');
  const { spelledFor } = await import('../../model/respelled.js');
  const text = config.text_config as Record<string, unknown> | undefined;
  const dtype = config.dtype ?? config.torch_dtype ?? text?.dtype ?? text?.torch_dtype;
  const known = knownArchitecture(config);
  const experts = known && spelledFor(known, tensors).experts;
  return {
    dtype: typeof dtype === 'string' ? dtype : undefined,
    experts:
      experts === undefined ? 'none' : experts.fused === undefined || experts.named === 'all' ? 'single' : 'fused',
  };
}

/** The pack target for a quantized checkpoint. Throws LPQ_ENGINE naming a module that the engine does not read. */
export async function targetOf(engine: Engine, input: CanonicalCheckpoint): Promise<string> {
  const { engineTarget } = await import('../../engines/settle.js');
  const tensors = input.moduleNames().map((name) => `${name}.weight`);
  const schemes = new Map(input.moduleNames().map((name) => [name, schemeOfModule(input.module(name))] as const));
  const inputScales = input.moduleNames().every((name) => input.module(name).inputMost !== undefined);
  return engineTarget(engine, schemes, { ...(await engineModel(input.config, tensors)), inputScales });
}

/** The scheme that a module's declaration says. */
export function schemeOfModule({
  type,
  granularity,
  zeros,
  scales,
  sparsity,
}: Omit<CanonicalModule, 'sha256'>): QuantScheme {
  const known = quantType(type);
  const middle = known.kind === 'int' && zeros.kind === 'const' && zeros.value === 2 ** (known.bits - 1);
  return {
    type: known,
    granularity,
    symmetric: zeros.kind === 'none' || middle,
    scaleDtype: scales.dtype,
    globalScale: scales.global,
    ...(scales.twoLevel && { twoLevel: true as const }),
    ...(sparsity === '2:4' && { sparsity }),
  };
}

/** Proves a packed directory against what it was packed from. Throws LPQ_VERIFY at the first difference. */
export async function prove(
  place: {
    readonly packed: string;
    readonly quantized: string;
    readonly source?: string | undefined;
    readonly importance?: string | undefined;
  },
  runtime: NativeRuntime,
  run: Run,
): Promise<void> {
  const { packed: dir, quantized: against, source, importance } = place;
  await requireKind(dir, 'lpq-artifact');
  const { directoryKind } = await import('../../../formats/canonical/source.js');
  const { verifyArtifact } = await import('../../verify/verify.js');
  const { verificationError } = await import('../../verify/report.js');
  const { openQuantizedWith } = await import('./sources.js');
  const foreign = directoryKind(against).startsWith('foreign:');
  const { step, end } = progress(run, 'verify', false);
  const report = await verifyArtifact({
    ...{ dir, against, source, importance, runtime },
    opened: foreign ? await openQuantizedWith(against, run) : undefined,
    onModule: ({ name }, done, total) => step(done, total, name),
  });
  end();
  const error = verificationError(report);
  if (error) throw error;
}

/** How sure it is that an engine loads what lpq wrote, in words. */
const EVIDENCE_IN_WORDS: Readonly<Record<Evidence, string>> = {
  'its loader ran': 'it has loaded and run such a model',
  'its conversion ran': 'its conversion has read such a model',
  'its rules were read': 'not run; its source says that it loads this',
  untried: 'not run',
};

/** What a finished directory is served with. */
export function tellServing(engine: Engine, dir: string, run: Run): void {
  const { name, title, versions, evidence, note } = engine;
  const command = engine.serve(path.relative('.', dir) || dir);
  run.report.event(
    'serve',
    { engine: name, versions, evidence, command },
    line`verified against the quantized checkpoint; for ${title} ${versions} (${EVIDENCE_IN_WORDS[evidence]}): ${command}`,
    note === undefined ? [] : [note],
  );
}
