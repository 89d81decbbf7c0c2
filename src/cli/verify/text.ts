import type { NativeRuntime } from '../../../native/binding.js';
import { openPrefix, withPrefix } from '../../calibrate/prefix.js';
import { readTextFile } from '../../calibrate/read-text.js';
import { openCodec } from '../../calibrate/tokenizer.js';
import { makeCache } from '../../generate/cache.js';
import { generate } from '../../generate/generate.js';
import { disposeResident, loadResident } from '../../generate/resident.js';
import { GREEDY } from '../../generate/sample.js';
import type { WeightSource } from '../../model/source.js';
import type { Run } from '../run.js';

/** Tokens of the prompt, and tokens that are written. */
const PROMPT = 16;
const WRITTEN = 64;

/** Tokens that a model writes, each time the likeliest, after the beginning of the text, which begins as its tokenizer begins one. */
export async function written(
  rt: NativeRuntime,
  source: WeightSource,
  file: string,
  run: Run,
): Promise<readonly number[]> {
  const codec = await openCodec(source.dir);
  const { content } = readTextFile(file);
  const text =
    content.kind === 'text' ? content.text : content.kind === 'documents' ? content.documents.join('\n') : '';
  const prefix = openPrefix(source.dir, 'auto').ids;
  const ids = withPrefix(await codec.encode(text.slice(0, 64 * PROMPT)), prefix).slice(0, PROMPT);
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

export function firstDifference(a: readonly number[], b: readonly number[]): number | undefined {
  const at = a.findIndex((id, i) => id !== b[i]);
  return at < 0 ? undefined : at;
}
