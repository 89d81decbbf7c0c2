import { LpqError } from '../core/error.js';
import { hintFor } from '../core/names.js';
import type { Engine } from './engine.js';
import { llamaCpp } from './table/llama-cpp.js';
import { lmdeploy } from './table/lmdeploy.js';
import { lpq } from './table/lpq.js';
import { sglang } from './table/sglang.js';
import { tensorrtLlm } from './table/tensorrt-llm.js';
import { transformers } from './table/transformers.js';
import { vllm } from './table/vllm.js';
import { vllmLpq } from './table/vllm-lpq.js';

export const ENGINES: readonly Engine[] = [vllm, sglang, transformers, lmdeploy, tensorrtLlm, llamaCpp, vllmLpq, lpq];

const ALIASES: Readonly<Record<string, string>> = {
  hf: 'Use --for transformers.',
  'llama-cpp': 'Use --for llama.cpp.',
  llamacpp: 'Use --for llama.cpp.',
  ollama: 'Ollama reads what llama.cpp reads: use --for llama.cpp.',
  gguf: 'GGUF is a format: use --for llama.cpp, or lpq pack --target gguf.',
  trtllm: 'Use --for tensorrt-llm.',
  turbomind: 'TurboMind is a kernel of LMDeploy: use --for lmdeploy.',
};

/** An engine by the name that --for takes. Throws LPQ_USAGE; without `untried` also for one of which nothing was made sure. */
export function engineNamed(name: string, untried: boolean): Engine {
  const engine = ENGINES.find((each) => each.name === name);
  if (!engine) {
    const names = ENGINES.map((each) => each.name);
    const hint = hintFor(name, names, ALIASES);
    throw new LpqError('LPQ_USAGE', `--for does not take '${name}'`, {
      got: name,
      expected: names.join(', '),
      ...(hint && { hint }),
    });
  }
  if (engine.forms.length === 0)
    throw new LpqError('LPQ_ENGINE', `lpq writes no format that ${engine.title} reads`, {
      got: `--for ${name}`,
      hint: 'Serve with another engine, such as --for vllm.',
    });
  if (engine.evidence === 'untried' && !untried)
    throw new LpqError('LPQ_ENGINE', `no output of lpq has run in ${engine.title} ${engine.versions}`, {
      got: `--for ${name}`,
      hint: 'Add --untested, and compare its answers with lpq generate.',
    });
  return engine;
}
