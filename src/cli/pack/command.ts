import type { Command } from 'commander';
import { parseShard, type Shard, shardPath } from '../../../formats/shards/shard.js';
import { LpqError } from '../../core/error.js';
import { counted } from '../../core/words.js';
import type { Engine } from '../../engines/engine.js';
import type { PackRuntime } from '../../layout/engine.js';
import { type EngineFlags, engineOf, engineOptions, prove, targetOf, tellServing } from '../options/engine.js';
import { modelDirectory } from '../options/hub.js';
import { registerOutput } from '../options/run-output.js';
import { openQuantizedWith, requireKind } from '../options/sources.js';
import { type ComputeOptions, computeOptions, openRuntime, type Run } from '../run.js';
import { table } from '../terminal/table.js';
import { line } from '../terminal/terminal.js';
import { bytes, duration } from '../terminal/units.js';

/** What commander makes of the arguments. */
interface PackFlags extends ComputeOptions, EngineFlags {
  readonly target?: string;
  readonly output: string;
  readonly dryRun?: boolean;
  readonly tp?: string;
  readonly ep?: string;
  readonly source?: string;
  readonly imatrix?: string;
  readonly shard?: Shard;
}

/** The same with a target, which the engine has chosen where there is one. */
interface PackOptions extends PackFlags {
  readonly target: string;
  readonly engine?: Engine | undefined;
}

/** `lpq pack QUANTIZED --target T -o OUT`. */
export function packCommand(program: Command, run: Run): Command {
  return computeOptions(
    engineOptions(
      program
        .command('pack')
        .description('pack a quantized checkpoint for an engine or a kernel')
        .argument(
          '<quantized>',
          'directory that lpq quantize wrote, or one with GPTQ, AWQ, compressed-tensors, FP8 or MXFP4 weights, or ORG/NAME[@REVISION] on the Hugging Face Hub',
        )
        .option('--target <name>', TARGETS)
        .requiredOption('-o, --output <dir>', 'directory to make'),
    )
      .optionsGroup('Run:')
      .option('--tp <ranks>', 'split the tensors for this number of tensor-parallel ranks')
      .option(
        '--ep <ranks>',
        'write separate files for each expert-parallel rank, with its experts; give the number of ranks',
      )
      .option(
        '--source <dir>',
        'the unquantized checkpoint, a directory or a name: gguf-q2_k to gguf-q8_0 then search from its weights',
      )
      .option(
        '--imatrix <file>',
        "llama.cpp's importance matrix (.gguf or .dat), or a directory of --save-stats; weighs the search of gguf-q2_k to gguf-q6_k",
      )
      .option('--shard <i/n>', 'make only part i (from 0) of n, for lpq merge', parseShard)
      .option(
        '--dry-run',
        'only show the plan: each module with the reason, disk, memory; --target may then be a list, or all',
      ),
  ).action((dir: string, flags: PackFlags) => pack(dir, flags, run));
}

/** What --target takes, where nobody asks for the names. */
const TARGETS = 'a device, a kernel or another program (docs/targets.md)';

/** Spells the targets out in the help of --target. For help and the manual page: loading them takes time. */
export async function describeTargets(program: Command): Promise<void> {
  const { PACK_TARGETS } = await import('../../pack/targets/index.js');
  const names = PACK_TARGETS.map(({ name }) => name).join(', ');
  const pack = program.commands.find((command) => command.name() === 'pack');
  for (const option of pack?.options ?? []) if (option.description === TARGETS) option.description = names;
}

async function pack(given: string, flags: PackFlags, run: Run): Promise<void> {
  const { shard } = flags;
  const engine = await engineOf(flags);
  checkWish(flags, engine);
  const output = shard && !flags.dryRun ? shardPath(flags.output, shard) : flags.output;
  const { refuseExisting, refuseInside } = await import('../../../formats/directory/place.js');
  // What is wrong with the command is told before anything is downloaded.
  const several = flags.dryRun && flags.target !== undefined && /,|^all$/.test(flags.target);
  if (!several && flags.target !== undefined) (await import('../../pack/targets/index.js')).packTarget(flags.target);
  if (!flags.dryRun) refuseExisting(output);
  const telling = { events: !flags.dryRun };
  const dir = await modelDirectory(given, run, telling);
  await requireKind(dir, 'lpq-canonical');
  if (several)
    return (await import('./matrix.js')).printPackMatrix(
      dir,
      flags.target as string,
      { ranks: ranksOf(flags.tp), experts: ranksOf(flags.ep) },
      run,
    );
  const options = { ...flags, output, engine, target: flags.target ?? (await targetFor(engine as Engine, dir)) };
  if (options.dryRun) return planOnly(dir, options, run);
  const source = options.source && (await modelDirectory(options.source, run, telling));
  for (const read of [dir, source]) if (read !== undefined) refuseInside(options.output, read);
  const runtime = await openPackRuntime(options, run);
  await packDirectory(dir, { ...options, ...(source && { source }) }, runtime, run);
}

/** Throws LPQ_USAGE unless one of --target and --for says what to pack for. */
function checkWish({ target, tp, shard }: PackFlags, engine: Engine | undefined): void {
  if (target === undefined && !engine)
    throw new LpqError('LPQ_USAGE', 'the engine or target to pack for is missing', {
      expected: '--target NAME or --for ENGINE',
      hint: 'Use for example --for vllm, or --target gptq.',
    });
  if (!engine) return;
  const other = (target !== undefined && '--target') || (tp !== undefined && '--tp') || (shard && '--shard');
  if (other)
    throw new LpqError('LPQ_USAGE', `--for does not go with ${other}`, {
      hint: other === '--target' ? 'Give one of them.' : 'Use --target instead: docs/engines.md says which.',
    });
}

async function targetFor(engine: Engine, dir: string): Promise<string> {
  const { openQuantized } = await import('../../../formats/canonical/source.js');
  const input = await openQuantized(dir, { blank: true });
  try {
    return await targetOf(engine, input);
  } finally {
    input.close();
  }
}

/** The CPU; where a CUDA device was asked for by name, with that one to lay out codes. */
export async function openPackRuntime(options: ComputeOptions, run: Run): Promise<PackRuntime> {
  const cpu = openRuntime(run, { ...options, device: 'cpu' });
  if (options.device === 'cpu' || options.device === 'auto') return cpu;
  const { LayoutDevice } = await import('../../layout/device.js');
  return Object.assign(cpu, { layouts: new LayoutDevice(openRuntime(run, options)) });
}

/** Packs; also the second half of `quantize --pack`. */
export async function packDirectory(
  dir: string,
  options: Pick<PackOptions, 'target' | 'output' | 'tp' | 'ep' | 'source' | 'imatrix' | 'shard' | 'engine'>,
  runtime: PackRuntime,
  run: Run,
): Promise<void> {
  const { packCheckpoint } = await import('../../pack/pack-checkpoint.js');
  const { engine } = options;
  const input = await openQuantizedWith(dir, run);
  try {
    const reading = Object.values(input.manifest.modules).filter(({ activations }) => activations).length;
    const { packTarget } = await import('../../pack/targets/index.js');
    if (reading > 0 && !packTarget(options.target).activations)
      run.report.warn(
        `${reading} modules were quantized for activations of 4 and 8 bits (W4Ax); ${options.target} packs only their weights, for 16-bit activations; --target comet packs both`,
        { modules: reading },
      );
    tellOfRoundedInputs(Object.values(input.manifest.modules), run);
    const task = run.report.task('pack', input.moduleNames().length);
    // Hundreds of modules may have the same note: people read it once, programs with each module.
    const said = new Map<string, { readonly first: string; readonly more: number }>();
    const report = await packCheckpoint({
      input,
      target: options.target,
      ranks: ranksOf(options.tp),
      expertRanks: ranksOf(options.ep),
      source: options.source,
      importance: options.imatrix,
      output: options.output,
      ...(options.shard && { shard: options.shard }),
      runtime,
      signal: run.interrupt.signal,
      onPlan: async (plan) => {
        const { estimatePack } = await import('../../pack/estimate.js');
        (await import('../options/preflight.js')).preflight(options.output, await estimatePack(plan), run);
      },
      onOutput: (output) => registerOutput(output, run),
      ...(engine && {
        serve: [engine.serve('DIR')],
        onComplete: (packed) =>
          prove({ packed, quantized: dir, source: options.source, importance: options.imatrix }, runtime, run),
      }),
      onModule: (row, done) => {
        const fresh = row.notes.filter((note) => !said.has(note));
        for (const note of row.notes) {
          const before = said.get(note);
          said.set(note, before ? { ...before, more: before.more + 1 } : { first: row.name, more: 0 });
        }
        const padded = row.padded.some((dim, i) => dim !== row.shape[i]) ? ` padded to ${row.padded.join(' x ')}` : '';
        run.report.detail(
          'module',
          row,
          `${row.name}  ${row.type} ${row.layout} ${row.shape.join(' x ')}${padded}  ${bytes(row.bytes)}`,
          fresh,
        );
        task.update(done, row.name);
      },
    });
    task.end();
    const { json, verbose } = run.report.options;
    if (!json && !verbose)
      for (const [note, { first, more }] of said)
        run.report.event('note', {}, `${first}${more > 0 ? ` and ${more} more` : ''}: ${note}`);
    for (const note of report.notes) run.report.warn(note);
    const { expertRanks } = report.manifest;
    if (expertRanks !== undefined)
      run.report.event(
        'expert-ranks',
        { expertRanks },
        `expert parallelism: the experts of each of ${expertRanks} ranks are in separate files (model.safetensors.index.json)`,
      );
    if (ranksOf(options.tp) === 1 && !options.shard)
      await (await import('./sharing.js')).tellSharing(input, report.modules, options.target, run);
    for (const { file, reason } of report.skippedFiles) run.report.warn(`${file} was not copied: ${reason}`);
    const { manifest, ...facts } = report;
    if (engine) tellServing(engine, options.output, run);
    const left = report.modules.filter(({ action }) => action === 'fallback').length;
    run.report.result(
      { command: 'pack', output: options.output, ...facts, provenance: manifest.provenance },
      line`packed ${counted(report.modules.length - left, 'module')} for ${report.target}${left > 0 ? `, left ${left} in another form` : ''}: ${bytes(report.bytes)} of packed modules in ${options.output}, ${duration(report.seconds)}\n`,
    );
  } finally {
    input.close();
  }
}

/** --tp, --ep; planPack refuses anything but a number. */
function ranksOf(ranks: string | undefined): number {
  return ranks === undefined ? 1 : Number(ranks.trim() || Number.NaN);
}

async function planOnly(dir: string, options: PackOptions, run: Run): Promise<void> {
  const { directoryKind, openQuantized } = await import('../../../formats/canonical/source.js');
  const { planPack } = await import('../../pack/plan.js');
  const input = await openQuantized(dir, { blank: true });
  try {
    const plan = planPack(input, options.target, ranksOf(options.tp), ranksOf(options.ep));
    const { estimatePack, timePack } = await import('../../pack/estimate.js');
    const { freeBytes, needsLine } = await import('../options/preflight.js');
    const own = directoryKind(dir) === 'lpq-canonical';
    const seconds = plan.refusal || !own ? undefined : await timePack(await openPackRuntime(options, run), plan);
    const needs = { ...(await estimatePack(plan)), ...(seconds !== undefined && { seconds }) };
    const modules = [...plan.decisions].map(([name, decision]) => {
      const { type, shape } = input.module(name);
      const fallback = decision.action === 'fallback';
      return {
        name,
        type,
        shape,
        action: decision.action,
        layout: fallback ? decision.form : decision.layout,
        notes: fallback ? [`${decision.reason}. ${decision.remedy}`] : [...decision.notes],
      };
    });
    run.report.result(
      {
        command: 'pack',
        dryRun: true,
        target: plan.target.name,
        requested: plan.requested,
        ranks: plan.ranks,
        notes: plan.notes,
        modules,
        estimate: { ...needs, free: freeBytes(options.output) ?? null },
      },
      table(
        ['module', 'type', 'shape', 'action', 'layout', 'notes'],
        modules.map((m) => [m.name, m.type, m.shape.join(' x '), m.action, m.layout, m.notes.join('; ')]),
      ) +
        plan.notes.map((note) => line`${note}\n`).join('') +
        `\n${needsLine(needs, freeBytes(options.output))}\n`,
    );
    if (plan.refusal) throw plan.refusal;
  } finally {
    input.close();
  }
}

/** No artifact says so: what engines round, they round of their own. */
function tellOfRoundedInputs(modules: readonly { readonly inputType?: string | undefined }[], run: Run): void {
  const types = new Set(modules.flatMap(({ inputType }) => inputType ?? []));
  for (const type of types)
    run.report.warn(
      `${modules.filter(({ inputType }) => inputType === type).length} modules were solved for inputs rounded to ${type}: serve them with an engine that rounds inputs so (docs/engines.md); elsewhere they read 16 bits`,
      { type },
    );
}
