import { openCodec } from '../../calibrate/tokenizer.js';
import { LpqError } from '../../core/error.js';
import { makeCache } from '../../generate/cache.js';
import { type Generated, generate, roomFor, type Timings } from '../../generate/generate.js';
import { encodePrompts, type Given, readPrompts } from '../../generate/prompts.js';
import { disposeResident, loadResident } from '../../generate/resident.js';
import { checkSampling, type Sampling } from '../../generate/sample.js';
import { stopTokens } from '../../generate/stop-tokens.js';
import { contextLength } from '../../model/context.js';
import { openEvaluated } from '../options/kv.js';
import { productsUsed } from '../options/products.js';
import { progress, type Run } from '../run.js';
import { bytes, duration } from '../terminal/units.js';
import type { GenerateFlags } from './command.js';

/** Tokens that are generated where nobody says how many. */
const TOKENS = 128;

/** What `lpq generate` does, with the directory found. */
export async function generateFrom(dir: string, flags: GenerateFlags, run: Run): Promise<void> {
  const started = performance.now();
  const given = givenPrompts(flags);
  const sampling = samplingOf(flags);
  if (flags.stop?.includes('')) throw new LpqError('LPQ_USAGE', '--stop does not take an empty text', { got: '' });
  const codec = await openCodec(dir);
  const prompts = await encodePrompts(dir, codec, given, flags);
  const {
    rt,
    source,
    cache: form,
    close,
  } = await openEvaluated(dir, flags, run, {
    generates: true,
    kernels: flags.kernels,
  });
  try {
    const ends = flags.ignoreEos ? new Set<number>() : stopTokens(dir, source.config);
    const maxTokens = roomFor(prompts, flags.maxTokens, contextLength(source), TOKENS);
    const { step, end } = progress(run, 'load', false);
    const model = await loadResident(rt, source, step);
    end();
    const loaded = performance.now();
    const longest = prompts.reduce((most, { ids }) => Math.max(most, ids.length), 0);
    const cache = makeCache(rt, form, {
      blocks: model.graph.blocks.length,
      slots: prompts.length,
      most: longest + maxTokens,
    });
    const alone = prompts.length === 1;
    const { generated, timings } = await generate(
      rt,
      model,
      cache,
      codec,
      prompts,
      { sampling, maxTokens, stopTokens: ends, stops: flags.stop ?? [] },
      {
        onStep: () => {
          run.interrupt.check();
          // The text is all that is made here: nobody reads it any more. What became of stdout is told at the end.
          if (run.report.unread) throw new LpqError('LPQ_PIPE', 'stdout was closed before the text was written');
        },
        ...(alone && { onText: (_prompt: number, text: string) => run.report.text(text) }),
      },
    );
    const facts = {
      device: rt.device,
      ...productsUsed(rt),
      cache: { form: cache.form, bytes: cache.bytes },
      seconds: { load: (loaded - started) / 1000, prefill: timings.prefill, decode: timings.decode },
    };
    cache.dispose();
    disposeResident(model);
    if (alone) run.report.text('\n');
    run.report.event('generated', facts, speed(generated, timings, facts.cache));
    run.report.result(
      { dir, ...facts, sampling, maxTokens, sequences: generated },
      alone ? '' : generated.map(({ prompt, text }, i) => `--- ${i + 1}: ${firstLine(prompt)}\n${text}\n`).join(''),
    );
  } finally {
    close();
  }
}

function givenPrompts({ prompt = [], prompts, chat, system }: GenerateFlags): Given[] {
  if (system !== undefined && !chat && prompts === undefined)
    throw new LpqError('LPQ_USAGE', '--system has no effect without --chat', { hint: 'Add --chat.' });
  const all = [...prompt, ...(prompts === undefined ? [] : readPrompts(prompts))];
  if (all.length > 0) return all;
  if (prompts !== undefined) throw new LpqError('LPQ_USAGE', `${prompts} holds no prompt`, { got: 'an empty file' });
  throw new LpqError('LPQ_USAGE', 'there is no prompt to continue', {
    hint: 'Give --prompt TEXT or --prompts FILE.',
  });
}

function samplingOf({ temperature = 0, topK = 0, topP = 1, seed }: GenerateFlags): Sampling {
  const sampling = { temperature, topK, topP, seed };
  checkSampling(sampling);
  return sampling;
}

function firstLine(text: string): string {
  const [line = ''] = text.split('\n');
  return line.length > 60 || line.length < text.length ? `${line.slice(0, 60)}...` : line;
}

function speed(
  generated: readonly Generated[],
  { prefill, decode, promptTokens, decoded }: Timings,
  cache: { readonly form: string; readonly bytes: number },
): string {
  const [first] = generated;
  const ended = generated.length === 1 && first ? `, ended by ${first.stop ?? first.finish}` : '';
  const rate = decoded > 0 ? `, ${decoded} more at ${(decoded / decode).toFixed(1)} tokens/s` : '';
  return `prompt: ${promptTokens} tokens in ${duration(prefill)}${rate}${ended}; cache ${cache.form}, ${bytes(cache.bytes)}`;
}
