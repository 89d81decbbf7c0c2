import { isDeepStrictEqual } from 'node:util';
import { SourceCheckpoint } from '../../../formats/canonical/source.js';
import type { Evaluation } from '../../../formats/report/schema.js';
import { LpqError } from '../../core/error.js';
import { modelDirectory } from '../options/hub.js';
import { cacheSize, openEvaluated } from '../options/kv.js';
import { requireKind, warnOfOtherSource } from '../options/sources.js';
import { openReport } from '../report/command.js';
import { progress, type Run } from '../run.js';
import { line } from '../terminal/terminal.js';
import { duration } from '../terminal/units.js';
import type { TextOptions } from './command.js';
import { evaluationOf } from './evaluation.js';
import { lengthWarning, scored } from './windows.js';

/** `eval --source SRC` and `eval --report`: perplexity, and with a source also its own and the divergence from it. */
export async function evaluateAgainst(dir: string, options: TextOptions, run: Run): Promise<void> {
  const started = performance.now();
  // What cannot be added to is told before anything is computed.
  const report = options.report ? await openReport(dir) : undefined;
  const original = options.source === undefined ? undefined : await modelDirectory(options.source, run);
  if (original !== undefined) {
    await requireKind(original, 'source');
    await warnOfOtherSource(dir, original, run);
  }
  const { found, size } = await evaluation(dir, original, options, run);
  const written = report && (await (await import('../../report/write.js')).writeReport(dir, added(report, found)));
  const seconds = (performance.now() - started) / 1000;
  const { perplexity, source, text } = found;
  const bar = (value: number, error: number | null, digits: number) =>
    `${value.toFixed(digits)}${error === null ? '' : ` ± ${error.toPrecision(2)}`}`;
  const lines = [
    line`ppl ${bar(perplexity.ppl, perplexity.error, 4)}   ${scored(found)}   ${text}   ${duration(seconds)}\n`,
    ...(source
      ? [
          line`source ppl ${bar(source.perplexity.ppl, source.perplexity.error, 4)}   ${source.name}\n`,
          `KL ${bar(source.kl.mean, source.kl.error, 5)} nats per token   same top token ${bar(100 * source.sameTop.mean, source.sameTop.error === null ? null : 100 * source.sameTop.error, 2)} %\n`,
        ]
      : []),
    ...(size ? [size.told] : []),
    ...(written ? [line`added to ${written.json}\n`] : []),
  ];
  const { ppl, error } = perplexity;
  run.report.result(
    {
      dir,
      ...found,
      ppl,
      standardError: error,
      ...(size && { cache: size.cache }),
      ...(written && { report: written }),
      seconds,
    },
    lines.join(''),
  );
}

async function evaluation(
  dir: string,
  original: string | undefined,
  options: TextOptions,
  run: Run,
): Promise<{ found: Evaluation; size: ReturnType<typeof cacheSize> }> {
  const { text, ctx, bos } = options;
  const { rt, source, close } = await openEvaluated(dir, options, run);
  const size = cacheSize(source);
  const onWindows = await lengthWarning(source, ctx, run);
  const products = rt.device === 'cpu' && rt.products === 'bf16' ? { products: 'bf16' as const } : {};
  const { step: onProgress, end } = progress(run, 'eval', false);
  try {
    if (original === undefined) {
      const { textPerplexity } = await import('../../eval/perplexity.js');
      const { ppl, standardError, tokens, windows, ...rest } = await textPerplexity(rt, source, text, {
        ...{ ctx, bos, onWindows, onProgress },
      });
      const { sha256, text: name } = rest;
      const found = { text: name, sha256, ctx, prefix: [...rest.prefix], windows, tokens, ...products };
      return { found: { ...found, perplexity: { ppl, error: standardError }, source: null }, size };
    }
    const { textDivergence } = await import('../../eval/divergence.js');
    const reference = SourceCheckpoint.open(original);
    try {
      const found = await textDivergence(rt, reference, source, text, { ctx, bos, onWindows, onProgress });
      const { directoryOrigin } = await import('../../../formats/directory/origin.js');
      return { found: { ...evaluationOf(found, directoryOrigin(original).name), ...products }, size };
    } finally {
      reference.close();
    }
  } finally {
    end();
    close();
  }
}

/** The same text and windows again replace what was there, but for a comparison with the source that was not asked for again. */
function added<T extends { evaluations: Evaluation[] }>(report: T, found: Evaluation): T {
  if (!Number.isFinite(found.perplexity.ppl)) throw new LpqError('LPQ_MODULE_NUMERICS', 'the perplexity is infinite');
  const same = ({ sha256, ctx, prefix }: Evaluation) =>
    sha256 === found.sha256 && ctx === found.ctx && isDeepStrictEqual(prefix, found.prefix);
  const source = found.source ?? report.evaluations.find(same)?.source ?? null;
  return { ...report, evaluations: [...report.evaluations.filter((each) => !same(each)), { ...found, source }] };
}
