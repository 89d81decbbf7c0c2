import type { Command } from 'commander';
import type { NativeRuntime } from '../../../native/binding.js';
import { LpqError } from '../../core/error.js';
import { counted } from '../../core/words.js';
import type { Recorder } from '../../verify/report.js';
import { activationsOf } from '../options/activations.js';
import { modelDirectory } from '../options/hub.js';
import { integer } from '../options/parse.js';
import { isReadableForeign, openQuantizedWith, requireKind, warnOfOtherSource } from '../options/sources.js';
import { type ComputeOptions, computeOptions, openRuntime, progress, type Run } from '../run.js';
import { line } from '../terminal/terminal.js';
import { duration } from '../terminal/units.js';
import { checkText } from './checks.js';
import type { Verification } from './junit.js';

export interface VerifyFlags extends ComputeOptions {
  readonly against?: string;
  readonly seed: number;
  readonly junit?: string;
  readonly endToEnd?: boolean;
  readonly source?: string;
  readonly imatrix?: string;
  readonly text?: string;
}

/** `lpq verify ARTIFACT`: proves that the packed bytes hold what was quantized. Of another tool's checkpoint: what it can be checked for. */
export function verifyCommand(program: Command, run: Run): Command {
  return computeOptions(
    program
      .command('verify')
      .description('prove that a packed directory holds the quantized weights')
      .argument(
        '<artifact>',
        'directory that lpq pack wrote, or ORG/NAME[@REVISION] on the Hugging Face Hub; a checkpoint of another tool is checked for its structure and every weight',
      )
      .option(
        '--against <dir>',
        'the quantized checkpoint it was packed from, by lpq or another tool, a directory or a name: compare every byte with it',
      )
      .option('--seed <s>', "seed of the emulator's activations", integer('--seed', 0), 0)
      .option('--end-to-end', 'also compare the logits and the text of the whole model; needs --against')
      .option('--imatrix <file>', 'the importance matrix that weighed the search of GGUF blocks')
      .option(
        '--source <dir>',
        'the unquantized checkpoint: for GGUF packed with --source, compare its blocks with it; with --end-to-end, for perplexity and divergence',
      )
      .option('--text <file>', 'with --end-to-end: the text to read (default: the first pages of a bundled book)')
      .option('--junit <file>', 'also write the result as JUnit XML, for CI'),
  ).action((dir: string, options: VerifyFlags) => verify(dir, options, run));
}

async function verify(given: string, options: VerifyFlags, run: Run): Promise<void> {
  const work = () => verified(given, options, run);
  const { junit } = options;
  const found = junit === undefined ? await work() : await (await import('./junit.js')).withJunit(junit, given, work);
  run.report.result(found.result, found.text);
  if (found.error) throw found.error;
}

async function verified(given: string, options: VerifyFlags, run: Run): Promise<Verification> {
  const { verifyArtifact } = await import('../../verify/verify.js');
  checkEndToEnd(options);
  const dir = await modelDirectory(given, run);
  if (await isReadableForeign(dir)) return verifyOther(dir, options, run);
  await requireKind(dir, 'lpq-artifact');
  const source = await sourceOf(dir, options, run);
  const against = options.against && (await modelDirectory(options.against, run));
  if (against) await requireKind(against, 'lpq-canonical');
  const { CACHE, KERNEL_CACHE, LATENTS } = await import('../options/kv-cache.js');
  const device = openRuntime(run, { ...options, activations: activationsOf(dir, undefined) });
  const runtime = device.device === 'cpu' ? device : openRuntime(run, { ...options, device: 'cpu' });
  const { directoryKind } = await import('../../../formats/canonical/source.js');
  const foreign = against && directoryKind(against).startsWith('foreign:');
  const opened = foreign ? await openQuantizedWith(against, run) : undefined;
  const { step, end } = progress(run, 'verify', false);
  const report = await verifyArtifact({
    dir,
    against,
    opened,
    source,
    importance: options.imatrix,
    seed: options.seed,
    cache: { reference: CACHE, kernel: KERNEL_CACHE, latents: LATENTS },
    endToEnd: await endToEndOf(dir, against, options, { runtime, device }, run),
    runtime,
    ...(device !== runtime && { kernel: device }),
    onModule: ({ name }, done, total) => step(done, total, name),
  });
  end();
  const { verificationError } = await import('../../verify/report.js');
  return {
    result: report,
    text: checkText(
      report,
      line`${report.dir} (${report.target}, ${counted(report.modules.length, 'module')}): ${report.ok ? 'verified' : 'NOT verified'} in ${duration(report.seconds)}`,
    ),
    told: { ...report, kind: report.target },
    error: verificationError(report),
  };
}

function checkEndToEnd({ endToEnd, against, text }: VerifyFlags): void {
  if (endToEnd && against === undefined)
    throw new LpqError('LPQ_USAGE', '--end-to-end needs the checkpoint that was packed', {
      hint: 'Give --against QUANTIZED.',
    });
  if (!endToEnd && text !== undefined)
    throw new LpqError('LPQ_USAGE', '--text has no effect without --end-to-end', { hint: 'Add --end-to-end.' });
}

/** What blocks of GGUF were searched in. Throws LPQ_USAGE for a --source that nothing reads. */
async function sourceOf(dir: string, { endToEnd, source }: VerifyFlags, run: Run): Promise<string | undefined> {
  if (source === undefined) return undefined;
  const { readManifest } = await import('../../../formats/canonical/read.js');
  const { artifactSchema } = await import('../../../formats/artifact/schema.js');
  const { isGguf } = await import('../../verify/gguf.js');
  if (!isGguf(readManifest(dir, artifactSchema, 'LPQ_ARTIFACT'))) {
    if (endToEnd) return undefined;
    throw new LpqError('LPQ_USAGE', '--source has no effect without --end-to-end', { hint: 'Add --end-to-end.' });
  }
  return modelDirectory(source, run);
}

async function endToEndOf(
  dir: string,
  against: string | undefined,
  { endToEnd, source, text }: VerifyFlags,
  { runtime, device }: { readonly runtime: NativeRuntime; readonly device: NativeRuntime },
  run: Run,
): Promise<((recorder: Recorder) => Promise<object>) | undefined> {
  if (!endToEnd || against === undefined) return undefined;
  const original = source && (await modelDirectory(source, run));
  if (original) {
    await requireKind(original, 'source');
    await warnOfOtherSource(dir, original, run);
  }
  const { wholeModel } = await import('./model.js');
  const kernel = device === runtime ? undefined : device;
  return (recorder) => wholeModel(recorder, { dir, against, source: original, text, runtime, kernel }, run);
}

/** What lpq did not write: there is nothing to compare it with. */
async function verifyOther(dir: string, options: VerifyFlags, run: Run): Promise<Verification> {
  if (options.source !== undefined && !options.endToEnd)
    throw new LpqError('LPQ_USAGE', '--source has no effect without --end-to-end', { hint: 'Leave it out.' });
  if (options.against !== undefined)
    throw new LpqError('LPQ_USAGE', `--against has no effect with ${dir}, which lpq did not write`, {
      got: options.against,
      hint: `Leave it out; to compare a packed directory with this one: lpq verify PACKED --against ${dir}`,
    });
  const { directoryKind } = await import('../../../formats/canonical/source.js');
  const { verifySource } = await import('./source.js');
  return verifySource(dir, directoryKind(dir), openRuntime(run, { ...options, device: 'cpu' }), run);
}
