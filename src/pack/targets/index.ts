import { LpqError } from '../../core/error.js';
import { hintFor, type Meanings } from '../../core/names.js';
import type { PackTarget } from '../target.js';
import { awq } from './awq.js';
import { comet } from './comet.js';
import {
  compressedTensors,
  compressedTensorsW4A4,
  compressedTensorsW4A8,
  compressedTensorsW8A8,
} from './compressed-tensors.js';
import { gguf, ggufSearched } from './gguf.js';
import { gptq } from './gptq.js';
import { gptqV2 } from './gptq_v2.js';
import { HARDWARE } from './hardware.js';
import { marlin } from './marlin.js';
import { modelopt } from './modelopt.js';
import { sparseMarlin } from './sparse_marlin.js';
import { tilus } from './tilus.js';
import { turbomind, turbomindSm70 } from './turbomind.js';
import { w4a8 } from './w4a8.js';

/** Every target, in the order that lists show. */
export const PACK_TARGETS: readonly PackTarget[] = [
  ...HARDWARE,
  marlin,
  sparseMarlin,
  turbomind,
  turbomindSm70,
  tilus,
  comet,
  w4a8,
  gptq,
  gptqV2,
  awq,
  compressedTensors,
  compressedTensorsW8A8,
  compressedTensorsW4A8,
  compressedTensorsW4A4,
  modelopt,
  gguf,
  ...ggufSearched,
];

/** Programs and devices, by the targets that suit them. */
const MEANINGS: Meanings = {
  ...alike(
    ['vllm', 'sglang'],
    'An engine reads several formats: --for vllm (or sglang) instead of --target chooses one.',
  ),
  ...alike(
    ['transformers', 'hf', 'huggingface'],
    'It reads several formats: --for transformers instead of --target chooses one.',
  ),
  ...alike(['llama.cpp', 'llamacpp', 'llama-cpp', 'ollama', 'lmstudio'], 'Use gguf, or gguf-q2_k to gguf-q8_0.'),
  ...alike(['q2_k', 'q3_k', 'q4_k', 'q4_k_m', 'q5_k', 'q6_k', 'q8_0'], 'Use gguf-q2_k to gguf-q8_0.'),
  ...alike(['lmdeploy'], 'Use --for lmdeploy instead of --target.'),
  ...alike(['gptqmodel', 'autogptq', 'auto-gptq'], 'Use gptq.'),
  ...alike(['autoawq', 'auto-awq'], 'Use awq.'),
  ...alike(['tensorrt-llm', 'trtllm', 'hf_quant_config'], 'Use modelopt.'),
  ...alike(['llm-compressor', 'llmcompressor', 'ct'], 'Use compressed-tensors.'),
  ...alike(['exl2', 'exl3', 'exllama', 'exllamav2'], 'lpq does not write it; ExLlama also reads gptq.'),
  ...alike(['h100', 'h200', 'hopper'], 'Use sm90.'),
  ...alike(['a100', 'ampere'], 'Use sm80.'),
  ...alike(['rtx3090', '3090'], 'Use sm86.'),
  ...alike(['rtx4090', '4090', 'l40s', 'ada'], 'Use sm89.'),
};

function alike(names: readonly string[], hint: string): Meanings {
  return Object.fromEntries(names.map((name) => [name, hint]));
}

/** The target called `name`. Throws LPQ_TARGET with the list of names. */
export function packTarget(name: string): PackTarget {
  const target = PACK_TARGETS.find((each) => each.name === name);
  if (target) return target;
  throw new LpqError('LPQ_TARGET', `'${name}' is not a pack target`, {
    got: name,
    expected: PACK_TARGETS.map((each) => each.name).join(', '),
    hint:
      hintFor(
        name,
        PACK_TARGETS.map((each) => each.name),
        MEANINGS,
      ) ?? 'docs/targets.md says what each is for.',
  });
}
