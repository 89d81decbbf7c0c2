import path from 'node:path';
import { openSource } from '../../formats/canonical/source.js';
import type { NativeRuntime } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { shareDirectory } from '../calibrate/bundled.js';
import { readTextFile } from '../calibrate/read-text.js';
import { openCodec } from '../calibrate/tokenizer.js';
import { type Divergence, textDivergence } from '../eval/divergence.js';
import { makeCache } from '../generate/cache.js';
import { generate } from '../generate/generate.js';
import { disposeResident, loadResident } from '../generate/resident.js';
import { GREEDY } from '../generate/sample.js';
import { multipliesCodes } from '../model/packed.js';
import type { WeightSource } from '../model/source.js';
import type { Recorder } from '../verify/report.js';
import { artifactSource } from '../verify/source.js';
import { replaced } from './kv.js';
import type { Run } from './run.js';

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

/** Windows that are compared, and their tokens; tokens of a prompt, and tokens that are written. */
const WINDOWS = 4;
const CTX = 256;
const PROMPT = 16;
const WRITTEN = 64;
/** Relative difference of perplexity that the roundings of a kernel may make: 0.1 %. */
const PERPLEXITY = 1e-3;

/**
 * What a whole model computes from packed bytes, beside the quantized checkpoint in fp32 on the CPU (docs/verification.md, "End to end").
 * Decoded, the weights are the same numbers and the sums run in the same order: logits and what is written must be equal, bit by bit.
 * Through kernels each product is rounded: the perplexity may differ by a thousandth.
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
      message: `the logits of the decoded artifact are not those of ${against}: the largest difference is ${exact.largest.difference}`,
    });
    const texts = [await written(rt, reference, file, run), await written(rt, decoded, file, run)] as const;
    const apart = firstDifference(...texts);
    recorder.check(apart === undefined, {
      check: 'end-to-end',
      ...(apart !== undefined && { got: apart }),
      message: `the decoded artifact writes another text than ${against} from token ${apart} on`,
    });
    const through = kernel && (await throughKernels(recorder, options, kernel, reference, file, texts[0], run));
    const original =
      source === undefined ? undefined : open(openSource(source, rt) as WeightSource & { close(): void });
    const loss = original && (await textDivergence(rt, original, decoded, file, window));
    recorder.detail(
      'end-to-end',
      [
        `${exact.windows} windows of ${CTX}, ${texts[0].length} tokens written`,
        `ppl ${exact.ppl.mean.toFixed(4)}`,
        ...(through ? [`through kernels ${through.ppl.mean.toFixed(4)}`] : []),
        ...(loss ? [`source ${loss.referencePpl.mean.toFixed(4)}, KL ${loss.kl.mean.toFixed(5)} nats`] : []),
      ].join(', '),
    );
    return {
      text: exact.text,
      sha256: exact.sha256,
      decoded: { ...told(exact), written: texts[0].length, sameWritten: apart ?? texts[0].length },
      ...(through && { kernels: { ...told(through), sameWritten: through.sameWritten } }),
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

/** The same artifact on a device, its packed modules through the kernels that they were packed for. */
async function throughKernels(
  recorder: Recorder,
  { dir, runtime: rt, against }: WholeModel,
  kernel: NativeRuntime,
  reference: WeightSource,
  file: string,
  text: readonly number[],
  run: Run,
): Promise<Divergence & { readonly sameWritten: number }> {
  const artifact = artifactSource(dir, rt, true, multipliesCodes(kernel));
  // Packed caches are simulated on the CPU only; here weights are compared.
  const [packed, plain] = [artifact, reference].map((each) => replaced(each, { kv: undefined })) as [
    WeightSource,
    WeightSource,
  ];
  try {
    const found = await textDivergence(rt, plain, packed, file, { ctx: CTX, windows: WINDOWS, runtime: kernel });
    const off = Math.abs(found.ppl.mean / found.referencePpl.mean - 1);
    recorder.check(off <= PERPLEXITY, {
      check: 'end-to-end',
      got: found.ppl.mean,
      expected: found.referencePpl.mean,
      message: `through the kernels of ${kernel.device} the perplexity is ${(100 * off).toFixed(3)} % away from that of ${against}`,
    });
    const own = await written(kernel, packed, file, run);
    return { ...found, sameWritten: firstDifference(text, own) ?? text.length };
  } finally {
    artifact.close();
  }
}

/** Tokens that a model writes, each time the likeliest, after the beginning of the text. */
async function written(rt: NativeRuntime, source: WeightSource, file: string, run: Run): Promise<readonly number[]> {
  const codec = openCodec(source.dir);
  const { content } = readTextFile(file);
  const text =
    content.kind === 'text' ? content.text : content.kind === 'documents' ? content.documents.join('\n') : '';
  const ids = codec.encode(text.slice(0, 64 * PROMPT)).slice(0, PROMPT);
  const model = await loadResident(rt, source, () => run.interrupt.check());
  const cache = makeCache(rt, 'exact', { blocks: model.graph.blocks.length, slots: 1, most: PROMPT + WRITTEN });
  try {
    const options = { sampling: GREEDY, maxTokens: WRITTEN, stopTokens: new Set<number>(), stops: [] };
    const { generated } = await generate(rt, model, cache, codec, [{ text: '', ids }], options, {
      onStep: () => run.interrupt.check(),
    });
    return generated[0]?.ids ?? [];
  } finally {
    cache.dispose();
    disposeResident(model);
  }
}

function firstDifference(a: readonly number[], b: readonly number[]): number | undefined {
  const at = a.findIndex((id, i) => id !== b[i]);
  return at < 0 ? undefined : at;
}

function told({ windows, tokens, ctx, ppl, referencePpl, kl, sameTop, largest }: Divergence): object {
  return { ctx, windows, tokens, ppl, referencePpl, kl, sameTop, largest };
}
