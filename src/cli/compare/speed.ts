import type { NativeRuntime } from '../../../native/binding.js';
import { openCodec } from '../../calibrate/tokenizer.js';
import { cacheForm, makeCache } from '../../generate/cache.js';
import { generate, roomFor } from '../../generate/generate.js';
import { encodePrompts } from '../../generate/prompts.js';
import { disposeResident, loadResident } from '../../generate/resident.js';
import { GREEDY } from '../../generate/sample.js';
import { contextLength } from '../../model/context.js';
import type { WeightSource } from '../../model/source.js';

/** Tokens that are written to time a model; the first of them come before what is timed. */
const TOKENS = 64;

/** Tokens a second that one sequence is continued with, the prompt not counted. */
export async function tokensPerSecond(rt: NativeRuntime, source: WeightSource, check: () => void): Promise<number> {
  const codec = await openCodec(source.dir);
  const prompts = await encodePrompts(source.dir, codec, ['The sea was calm, and the captain'], {});
  const maxTokens = roomFor(prompts, undefined, contextLength(source), TOKENS);
  const model = await loadResident(rt, source, check);
  const most = (prompts[0]?.ids.length ?? 0) + maxTokens;
  const cache = makeCache(rt, cacheForm(source), { blocks: model.graph.blocks.length, slots: 1, most });
  try {
    const options = { sampling: GREEDY, maxTokens, stopTokens: new Set<number>(), stops: [] };
    const { timings } = await generate(rt, model, cache, codec, prompts, options, { onStep: check });
    return timings.decoded / timings.decode;
  } finally {
    cache.dispose();
    disposeResident(model);
  }
}
