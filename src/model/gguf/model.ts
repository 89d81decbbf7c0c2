import { ggufArchitecture } from '../../../formats/gguf/architectures/index.js';
import type { GgufValue } from '../../../formats/gguf/metadata.js';
import { LpqError } from '../../core/error.js';
import { textOf } from '../../core/text-of.js';
import { architectureOf } from '../architectures/index.js';
import { planModel } from '../plan.js';
import { settingsOf } from '../settings.js';
import { differenceOf } from './check.js';
import { GGUF_COMPUTES } from './computes.js';
import { ggufEntries } from './entries.js';
import { attentions, expertCount, type GgufSubject, reads } from './facts.js';
import { type RopeTensors, ropeTensors, scaledRope } from './rope.js';

type Json = Readonly<Record<string, unknown>>;

/** What config.json says of a model, in GGUF's words. */
export interface GgufModel extends GgufSubject {
  readonly metadata: ReadonlyMap<string, GgufValue>;
  readonly experts: number;
  readonly ropeTensors: RopeTensors;
  readonly notes: readonly string[];
}

/** model_types that lpq writes to GGUF. */
export const GGUF_WRITTEN: readonly string[] = Object.keys(GGUF_COMPUTES).filter(ggufArchitecture);

/**
 * The model's names and metadata. Throws LPQ_TARGET for an architecture that llama.cpp lacks, and for what it would compute
 * otherwise; LPQ_CONFIG naming a key that is missing or of the wrong type.
 */
export function ggufModel(dir: string, config: Json): GgufModel {
  const modelType = textOf(config.model_type);
  const names = ggufArchitecture(modelType);
  const computes = Object.hasOwn(GGUF_COMPUTES, modelType) ? GGUF_COMPUTES[modelType] : undefined;
  if (!names || !computes)
    throw new LpqError('LPQ_TARGET', `lpq has no table for GGUF of model_type '${modelType}' (${dir})`, {
      got: modelType,
      expected: GGUF_WRITTEN.join(', '),
      hint: 'Pack for compressed-tensors, gptq or awq.',
    });
  const table = architectureOf(config, dir);
  const plan = planModel(table, config, dir);
  const subject: GgufSubject = { modelType, plan, names, computes };
  const difference = differenceOf(subject);
  if (difference)
    throw new LpqError('LPQ_TARGET', `${dir}: llama.cpp computes ${names.name} differently: ${difference.what}`, {
      got: String(difference.got),
      expected: String(difference.expected),
      hint: 'Pack for compressed-tensors, gptq or awq.',
    });
  const settings = settingsOf(table, config, dir);
  const context = plan.embedding.positions
    ? plan.embedding.positions.count
    : settings.count(table.sizes?.positions ?? ['max_position_embeddings']);
  return {
    ...subject,
    metadata: new Map(ggufEntries(subject, context)),
    experts: expertCount(plan),
    ropeTensors: ropeTensors(subject),
    notes: notesOf(subject),
  };
}

function notesOf(subject: GgufSubject): string[] {
  const notes: string[] = [];
  if (!reads(subject, 'windows') && attentions(subject.plan).some(([, { window }]) => window > 0))
    notes.push('llama.cpp ignores the sliding window of this model: it computes longer texts with full attention.');
  const by = scaledRope(subject)?.scaling;
  if (by?.kind === 'yarn' && !by.truncate)
    notes.push("llama.cpp rounds the ends of YaRN's ramp, which this model does not: angles in between are a little off.");
  return notes;
}
