import path from 'node:path';
import type { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import type { DirectoryKind } from '../../../formats/canonical/source.js';
import { factsOf } from '../../../formats/directory/facts.js';
import type { ErrorCode } from '../../core/codes.js';
import { LpqError } from '../../core/error.js';
import type { Run } from '../run.js';
import type { Task } from '../terminal/reporter.js';

/** A quantized checkpoint of lpq or of another tool; decoding and hashing the latter is told of. The caller closes it. */
export async function openQuantizedWith(dir: string, run: Run): Promise<CanonicalCheckpoint> {
  const { openQuantized } = await import('../../../formats/canonical/source.js');
  let task: Task | undefined;
  const opened = await openQuantized(dir, {
    onModule: (done, total) => {
      run.interrupt.check();
      task ??= run.report.task('read', total, false);
      task.update(done);
    },
  });
  task?.end();
  return opened;
}

/** Whether another tool quantized it, in a way that lpq reads. Throws LPQ_FILE without a directory. */
export async function isReadableForeign(dir: string): Promise<boolean> {
  const { directoryKind } = await import('../../../formats/canonical/source.js');
  const { READ_METHODS } = await import('../../../formats/foreign/settings.js');
  const kind = directoryKind(dir);
  return READ_METHODS.some((method) => kind === `foreign:${method}`);
}

/** Warns where lpq quantized DIR from another model than `original`: perplexity and divergence then say nothing of the quantization. */
export async function warnOfOtherSource(dir: string, original: string, run: Run): Promise<void> {
  const { directoryKind, SourceCheckpoint } = await import('../../../formats/canonical/source.js');
  const { knowsSource, otherSource } = await import('../../../formats/canonical/same-source.js');
  const kind = directoryKind(dir);
  if (kind !== 'lpq-canonical' && kind !== 'lpq-artifact') return;
  const { readManifest } = await import('../../../formats/canonical/read.js');
  const { canonicalSchema } = await import('../../../formats/canonical/schema.js');
  const { artifactSchema } = await import('../../../formats/artifact/schema.js');
  const { provenance } =
    kind === 'lpq-canonical'
      ? readManifest(dir, canonicalSchema, 'LPQ_CANONICAL')
      : readManifest(dir, artifactSchema, 'LPQ_ARTIFACT');
  const source = SourceCheckpoint.open(original);
  try {
    const other = otherSource(provenance.source, original, source.weights.fingerprint());
    if (!other || !knowsSource(provenance)) return;
    run.report.warn(
      `--source ${original} is not the model that ${dir} was quantized from (${other.expected}): the figures compare two models`,
      other,
    );
  } finally {
    source.close();
  }
}

/** What a command works on, in words, and where one gets it. */
const WANTED = {
  source: { code: 'LPQ_CONFIG', what: 'an unquantized checkpoint' },
  'lpq-canonical': { code: 'LPQ_CANONICAL', what: 'a quantized checkpoint' },
  'lpq-artifact': { code: 'LPQ_ARTIFACT', what: 'a packed artifact of lpq' },
} as const satisfies Record<string, { code: ErrorCode; what: string }>;

const FOUND: Readonly<Record<keyof typeof WANTED, string>> = {
  source: 'an unquantized checkpoint',
  'lpq-canonical': 'a quantized checkpoint, not packed',
  'lpq-artifact': 'a packed artifact',
};

/**
 * Throws, with the command that helps, when a directory holds something else than a command works on. LPQ_FILE without
 * one. What another tool quantized in a way that lpq reads does for a quantized checkpoint, what is published in low bits
 * for an unquantized one.
 */
export async function requireKind(dir: string, wanted: keyof typeof WANTED): Promise<void> {
  requireDirectory(dir);
  const { directoryKind, isSource, unpublished } = await import('../../../formats/canonical/source.js');
  const { READ_METHODS } = await import('../../../formats/foreign/settings.js');
  const kind = directoryKind(dir);
  if (kind === wanted || (wanted === 'source' && isSource(dir))) return;
  const readable = READ_METHODS.some((method) => kind === `foreign:${method}`);
  if (wanted === 'lpq-canonical' && readable) return;
  const { code, what } = WANTED[wanted];
  const why = kind === 'foreign:compressed-tensors' ? ` with ${unpublished(dir)}` : '';
  throw new LpqError(code, `${dir} is not ${what}`, {
    got:
      FOUND[kind as keyof typeof WANTED] ??
      `weights quantized by another tool (${kind.slice('foreign:'.length)}${why})`,
    hint: remedy(kind, wanted, readable),
  });
}

/** Weights lie beside their config.json and tokenizer.json. Throws LPQ_FILE for a file. */
export function requireDirectory(place: string): void {
  if (!factsOf(place)?.isFile()) return;
  throw new LpqError('LPQ_FILE', `${place} is a file, but lpq needs the directory of a checkpoint`, {
    got: 'a file',
    expected: 'a directory with config.json and the weights',
    hint: `Give ${path.dirname(place)}.`,
  });
}

function remedy(kind: DirectoryKind, wanted: keyof typeof WANTED, readable: boolean): string {
  if (wanted === 'source')
    return `Start from the checkpoint before it was quantized${readable ? '; lpq quantize --requantize accepts this one, and loses quality a second time' : ''}.`;
  if (kind === 'lpq-artifact') return 'Give the directory that it was packed from.';
  if (kind === 'lpq-canonical' || (wanted === 'lpq-artifact' && readable)) return 'Pack it first, with lpq pack.';
  if (kind !== 'source') return 'Start from the checkpoint before it was quantized.';
  return wanted === 'lpq-artifact'
    ? 'Quantize and pack it first, with lpq quantize and lpq pack.'
    : 'Quantize it first, with lpq quantize.';
}
