import path from 'node:path';
import { CanonicalSource, openSource } from '../../../formats/canonical/source.js';
import type { NativeRuntime } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { artifactSource } from '../../artifact/open.js';
import { replaced } from '../../artifact/replaced.js';
import { w4axSource } from '../../artifact/w4ax-source.js';
import { shareDirectory } from '../../calibrate/bundled.js';
import { type Divergence, textDivergence } from '../../eval/divergence.js';
import type { WeightSource } from '../../model/source.js';
import type { Recorder } from '../../verify/report.js';
import type { Run } from '../run.js';
import { throughKernels } from './kernels.js';
import { firstDifference, written } from './text.js';

export interface WholeModel {
  readonly dir: string;
  /** The quantized checkpoint. */
  readonly against: string;
  /** The one before it was quantized. */
  readonly source?: string | undefined;
  /** What is read; default: a book that lpq brings along. */
  readonly text?: string | undefined;
  /** Of the CPU. */
  readonly runtime: NativeRuntime;
  /** A device whose kernels multiply packed bytes. */
  readonly kernel?: NativeRuntime | undefined;
}

/** Windows that are compared, and their tokens. */
const WINDOWS = 4;
const CTX = 256;

/**
 * What a whole model computes from packed bytes, beside the quantized checkpoint in fp32 on the CPU (docs/verification.md, "End to end").
 * Decoded, the weights are the same numbers and the sums run in the same order: logits and what is written must be equal, bit by bit.
 * Through kernels each product is rounded: verify-kernels.ts.
 */
export async function wholeModel(recorder: Recorder, options: WholeModel, run: Run): Promise<object> {
  const { dir, against, source, runtime: rt, kernel } = options;
  const file = options.text ?? path.join(shareDirectory(), 'text', 'books-valid.txt');
  const window = { ctx: CTX, windows: WINDOWS, onProgress: () => run.interrupt.check() };
  const opened: { close(): void }[] = [];
  const open = <T extends WeightSource & { close(): void }>(from: T): T => {
    opened.push(from);
    return from;
  };
  try {
    const decoded = open(artifactSource(dir, rt));
    const canonical = open(openSource(against, rt) as WeightSource & { close(): void });
    const reference = asStored(rt, canonical, decoded);
    const exact = await textDivergence(rt, reference, decoded, file, window);
    const same = exact.largest.difference === 0;
    recorder.check(same, {
      check: 'end-to-end',
      got: exact.largest.difference,
      expected: 0,
      message: `the logits of the decoded artifact differ from those of ${against}: the largest difference is ${exact.largest.difference}`,
    });
    const texts = [await written(rt, reference, file, run), await written(rt, decoded, file, run)] as const;
    const apart = firstDifference(...texts);
    recorder.check(apart === undefined, {
      check: 'end-to-end',
      ...(apart !== undefined && { got: apart }),
      message: `the decoded artifact writes a different text than ${against} from token ${apart} on`,
    });
    const there = asStored(rt, canonical instanceof CanonicalSource ? w4axSource(canonical, rt) : canonical, decoded);
    const through =
      kernel && (await throughKernels(recorder, { dir, against, runtime: rt, kernel, reference, there, file }, run));
    const device = through && firstDifference(texts[0], through.written);
    const original =
      source === undefined ? undefined : open(openSource(source, rt) as WeightSource & { close(): void });
    const loss = original && (await textDivergence(rt, original, decoded, file, window));
    recorder.detail(
      'end-to-end',
      [
        `${exact.windows} windows of ${CTX}, ${texts[0].length} tokens written`,
        `ppl ${exact.ppl.mean.toFixed(4)}`,
        ...(through ? [`through kernels ${through.found.ppl.mean.toFixed(4)}`] : []),
        ...(loss ? [`source ${loss.referencePpl.mean.toFixed(4)}, KL ${loss.kl.mean.toFixed(5)} nats`] : []),
      ].join(', '),
    );
    return {
      text: exact.text,
      sha256: exact.sha256,
      decoded: { ...told(exact), written: texts[0].length, sameWritten: apart ?? texts[0].length },
      ...(through && { kernels: { ...told(through.found), sameWritten: device ?? texts[0].length } }),
      ...(loss && { source: told(loss) }),
    };
  } finally {
    for (const each of opened) each.close();
  }
}

/**
 * The quantized checkpoint with the weights of modules that the target cannot pack, which are stored in the dtype of the model, rounded
 * as those are.
 */
function asStored(
  rt: NativeRuntime,
  canonical: WeightSource,
  artifact: ReturnType<typeof artifactSource>,
): WeightSource {
  const { modules } = artifact.manifest;
  const dense = new Set(Object.keys(modules).filter((name) => modules[name]?.layout === 'dense'));
  return replaced(canonical, {
    reads: () => undefined,
    async tensor(name) {
      const exact = await canonical.tensor(name);
      if (!dense.has(name.replace(/\.weight$/, ''))) return exact;
      const { dtype } = await artifact.tensor(name);
      const stored = rt.allocate(dtype, exact.shape);
      ops.cast(rt, exact, stored);
      await rt.sync();
      exact.dispose();
      return stored;
    },
  });
}

function told({ windows, tokens, ctx, ppl, referencePpl, kl, sameTop, largest }: Divergence): object {
  return { ctx, windows, tokens, ppl, referencePpl, kl, sameTop, largest };
}
