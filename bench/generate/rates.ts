/** A process of peers.ts: node rates.js DIR PRODUCTS PROMPT DECODE prints {"prompt", "decode"}, tokens a second of the second run. */
import { createRuntime, readTyped } from '../../native/binding.js';
import { openWeights } from '../../src/artifact/open.js';
import { makeCache } from '../../src/generate/cache.js';
import { loadResident } from '../../src/generate/resident.js';
import { argmax } from '../../src/generate/sample.js';
import { disposeStep, makeStep, runStep } from '../../src/generate/step.js';
import { TokenSteps } from '../../src/generate/token-steps.js';

const [dir, products, prompt, decode] = process.argv.slice(2) as [string, 'f32' | 'bf16', string, string];
const [read, written] = [Number(prompt), Number(decode)];
const rt = createRuntime({ products });
const source = await openWeights(dir, rt, { coded: true });
const model = await loadResident(rt, source);
const ids = Int32Array.from({ length: read }, (_, i) => ((i * 7919) % (model.graph.vocab - 10)) + 5);
const cacheOf = (most: number) => makeCache(rt, 'exact', { blocks: model.graph.blocks.length, slots: 1, most });

async function promptSeconds(): Promise<number> {
  const cache = cacheOf(read);
  const started = performance.now();
  const step = makeStep(rt, [{ slot: 0, past: 0, ids }]);
  const logits = await runStep(rt, model, cache, step);
  await readTyped(rt, logits);
  const seconds = (performance.now() - started) / 1000;
  logits.dispose();
  disposeStep(step);
  cache.dispose();
  return seconds;
}

async function decodeSeconds(): Promise<number> {
  const cache = cacheOf(written);
  const steps = new TokenSteps(rt, model, cache);
  const started = performance.now();
  let id = ids[0] as number;
  for (let past = 0; past < written; past++)
    id = argmax(await steps.logits([{ slot: 0, past, ids: Int32Array.of(id) }]));
  const seconds = (performance.now() - started) / 1000;
  steps.dispose();
  cache.dispose();
  return seconds;
}

await promptSeconds();
await decodeSeconds();
console.log(JSON.stringify({ prompt: read / (await promptSeconds()), decode: written / (await decodeSeconds()) }));
source.close();
