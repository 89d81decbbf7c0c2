import { textOf } from '../../core/text-of.js';
import type { Architecture } from '../architecture.js';
import { unknownArchitecture } from '../unknown.js';
import { apertus } from './apertus.js';
import { arcee } from './arcee.js';
import { cohere, cohere2 } from './cohere.js';
import { deepseekV2 } from './deepseek_v2.js';
import { deepseekV3, kimiK2 } from './deepseek_v3.js';
import { deepseekV4 } from './deepseek_v4.js';
import { deepseekV32, glmMoeDsa } from './deepseek_v32.js';
import { dots1 } from './dots1.js';
import { ernie45 } from './ernie4_5.js';
import { ernie45Moe } from './ernie4_5_moe.js';
import { exaoneMoe } from './exaone_moe.js';
import { exaone4 } from './exaone4.js';
import { falconH1 } from './falcon_h1.js';
import { gemma } from './gemma.js';
import { gemma2 } from './gemma2.js';
import { gemma3Text } from './gemma3.js';
import { gemma3nText } from './gemma3n.js';
import { gemma4Text } from './gemma4.js';
import { glm4 } from './glm4.js';
import { glm4Moe, glm4MoeLite } from './glm4_moe.js';
import { gptOss } from './gpt_oss.js';
import { gptNeox } from './gpt-neox.js';
import { gpt2 } from './gpt2.js';
import { granite } from './granite.js';
import { graniteMoe } from './granitemoe.js';
import { graniteMoeHybrid } from './granitemoehybrid.js';
import { hunyuanV1Dense } from './hunyuan_v1_dense.js';
import { hunyuanV1Moe } from './hunyuan_v1_moe.js';
import { hyV3 } from './hy_v3.js';
import { jamba } from './jamba.js';
import { kimiLinear } from './kimi_linear.js';
import { lfm2, lfm2Moe } from './lfm2.js';
import { llama } from './llama.js';
import { llama4Text } from './llama4.js';
import { longcatFlash } from './longcat_flash.js';
import { mimoV2Flash } from './mimo_v2_flash.js';
import { minimaxM2 } from './minimax_m2.js';
import { minimaxM3Text } from './minimax_m3.js';
import { ministral3 } from './ministral3.js';
import { mistral } from './mistral.js';
import { mixtral } from './mixtral.js';
import { MULTIMODAL_TABLES } from './multimodal.js';
import { nemotron } from './nemotron.js';
import { nemotronH } from './nemotron_h.js';
import { olmoHybrid } from './olmo_hybrid.js';
import { olmo2 } from './olmo2.js';
import { olmo3 } from './olmo3.js';
import { olmoe } from './olmoe.js';
import { opt } from './opt.js';
import { phi3 } from './phi3.js';
import { phimoe } from './phimoe.js';
import { qwen2 } from './qwen2.js';
import { qwen2Moe } from './qwen2_moe.js';
import { qwen3 } from './qwen3.js';
import { qwen3Next, qwen35, qwen35Moe } from './qwen3_next.js';
import { qwen3Moe } from './qwen3-moe.js';
import { seedOss } from './seed_oss.js';
import { smollm3 } from './smollm3.js';
import { stablelm } from './stablelm.js';
import { starcoder2 } from './starcoder2.js';

/** Every architecture lpq reads, by model_type. */
export const ARCHITECTURES: readonly Architecture[] = [
  apertus,
  arcee,
  cohere,
  cohere2,
  deepseekV2,
  deepseekV3,
  deepseekV32,
  deepseekV4,
  dots1,
  ernie45,
  ernie45Moe,
  exaone4,
  exaoneMoe,
  falconH1,
  gemma,
  gemma2,
  gemma3Text,
  gemma3nText,
  gemma4Text,
  glm4,
  glm4Moe,
  glm4MoeLite,
  glmMoeDsa,
  gpt2,
  gptNeox,
  gptOss,
  granite,
  graniteMoe,
  graniteMoeHybrid,
  hunyuanV1Dense,
  hunyuanV1Moe,
  hyV3,
  jamba,
  kimiK2,
  kimiLinear,
  lfm2,
  lfm2Moe,
  llama,
  llama4Text,
  longcatFlash,
  mimoV2Flash,
  minimaxM2,
  minimaxM3Text,
  ministral3,
  mistral,
  mixtral,
  nemotron,
  nemotronH,
  olmo2,
  olmo3,
  olmoHybrid,
  olmoe,
  opt,
  phi3,
  phimoe,
  qwen2,
  qwen2Moe,
  qwen3,
  qwen3Moe,
  qwen3Next,
  qwen35,
  qwen35Moe,
  seedOss,
  smollm3,
  stablelm,
  starcoder2,
  ...MULTIMODAL_TABLES,
];

/** The table for a config.json, by `model_type`, else by the class in `architectures`; undefined where there is none. */
export function knownArchitecture(config: Readonly<Record<string, unknown>>): Architecture | undefined {
  const { model_type: type, architectures } = config;
  const classes = Array.isArray(architectures) ? architectures : [];
  const found = ARCHITECTURES.filter((table) =>
    type === undefined ? classes.includes(table.className) : table.modelType === type,
  );
  const text = found[0]?.text;
  if (!text) return withoutUnused(found[0], config);
  // One class holds language models of several kinds.
  const settings = config[text.key] as Readonly<Record<string, unknown>> | null | undefined;
  const inner = settings?.model_type;
  const table = inner === undefined ? found[0] : found.find((each) => each.text?.modelType === inner);
  return withoutUnused(table, settings ?? {});
}

/** The table without the experts that a model of its class may have and this one has not. */
function withoutUnused(
  table: Architecture | undefined,
  settings: Readonly<Record<string, unknown>>,
): Architecture | undefined {
  const { enabled, count = [], noneUpTo = -1 } = table?.experts ?? {};
  const stated = count.map((key) => settings[key]).find((value) => value !== undefined && value !== null);
  if (table && typeof stated === 'number' && stated <= noneUpTo) {
    const { experts: _, ...rest } = table;
    return rest;
  }
  if (!table || enabled === undefined || settings[enabled.key] === true) return table;
  const { experts: _, ...rest } = table;
  return { ...rest, only: { ...rest.only, [enabled.key]: false } };
}

/** The same. Throws LPQ_ARCH_UNKNOWN. */
export function architectureOf(config: Readonly<Record<string, unknown>>, dir: string): Architecture {
  const found = knownArchitecture(config);
  const classes = Array.isArray(config.architectures) ? config.architectures : [];
  // A classifier or an embedding model has the blocks of a language model but no head to measure it by.
  const speaks = (name: unknown) => name === found?.className || /^\w+ForCausalLM$/.test(textOf(name));
  if (found && (classes.length === 0 || classes.some(speaks))) return found;
  throw unknownArchitecture(config, dir, ARCHITECTURES);
}
