import type { GgufArchitecture } from '../../../formats/gguf/architectures/architecture.js';
import { ggufArchitecture } from '../../../formats/gguf/architectures/index.js';
import type { GgufValue } from '../../../formats/gguf/metadata.js';
import { LpqError } from '../../core/error.js';
import { textOf } from '../../core/text-of.js';
import type { Architecture } from '../architecture.js';
import { architectureOf, knownArchitecture } from '../architectures/index.js';
import type { Config } from '../config.js';
import { asNamed } from '../named.js';
import { planModel } from '../plan.js';
import { settingsOf } from '../settings.js';
import type { WeightShapes } from '../source.js';
import { differenceOf } from './check.js';
import type { Computes } from './computes.js';
import { COMPUTES_DENSE } from './computes-dense.js';
import { COMPUTES_OTHERS } from './computes-others.js';
import { ggufEntries } from './entries.js';
import { attentions, expertCount, type GgufSubject, reads } from './facts.js';
import { GGUF_REFUSED } from './refused.js';
import { type RopeTensors, ropeTensors, scaledRope } from './rope.js';
import { type Unread, unreadNote, unreadOf } from './unread.js';

type Json = Readonly<Record<string, unknown>>;

const GGUF_COMPUTES: Readonly<Record<string, Computes>> = { ...COMPUTES_DENSE, ...COMPUTES_OTHERS };

/** What config.json says of a model, in GGUF's words. */
export interface GgufModel extends GgufSubject {
  readonly metadata: ReadonlyMap<string, GgufValue>;
  readonly experts: number;
  /** The names that the class of the language model has. */
  readonly usual: GgufArchitecture;
  readonly ropeTensors: RopeTensors;
  /** Zeros, which the checkpoint has not. */
  readonly unread: readonly Unread[];
  readonly notes: readonly string[];
}

/** Whether lpq writes the architecture of a config.json to GGUF. */
export const isWritten = (config: Json): boolean =>
  GGUF_WRITTEN.includes(knownArchitecture(config)?.text?.modelType ?? textOf(config.model_type));

/** model_types that lpq writes to GGUF. */
export const GGUF_WRITTEN: readonly string[] = Object.keys(GGUF_COMPUTES).filter(ggufArchitecture);

/**
 * The model's names and metadata; `tensors`: names of the checkpoint's, which may be spelled otherwise than its class does. Throws
 * LPQ_TARGET for an architecture that llama.cpp lacks, and for what it would compute otherwise; LPQ_CONFIG naming a key that is missing
 * or of the wrong type.
 */
export function ggufModel(dir: string, config: Json, tensors: TensorNames = namesOf([], false)): GgufModel {
  const known = knownArchitecture(config);
  const modelType = known?.text?.modelType ?? textOf(config.model_type);
  const row = ggufArchitecture(modelType);
  const computes = Object.hasOwn(GGUF_COMPUTES, modelType) ? GGUF_COMPUTES[modelType] : undefined;
  const reason = Object.hasOwn(GGUF_REFUSED, modelType) ? GGUF_REFUSED[modelType] : undefined;
  if (reason !== undefined)
    throw new LpqError('LPQ_TARGET', `lpq does not write model_type '${modelType}' to GGUF (${dir}): ${reason}`, {
      got: modelType,
      expected: GGUF_WRITTEN.join(', '),
      hint: 'Pack for compressed-tensors, gptq or awq.',
    });
  if (!row || !computes)
    throw new LpqError('LPQ_TARGET', `lpq has no table for GGUF of model_type '${modelType}' (${dir})`, {
      got: modelType,
      expected: GGUF_WRITTEN.join(', '),
      hint: 'Pack for compressed-tensors, gptq or awq.',
    });
  const shapes = { ...tensors, dir, config: { ...config }, shape: () => [] };
  const table = asNamed(architectureOf(config, dir), shapes);
  const plan = planModel(table, config, dir);
  const usual = (row.withExperts !== undefined && expertCount(plan) > 0 && ggufArchitecture(row.withExperts)) || row;
  const settings = settingsOf(table, config, dir);
  const { spelled: other } = usual;
  const respelled = other !== undefined && endsIn(tensors, other.has);
  const names = spelled(respelled ? { ...usual, block: other.block } : usual, table);
  const subject: GgufSubject = { modelType, plan, names, computes, sections: sectionsOf(settings) };
  const difference = differenceOf(subject);
  if (difference)
    throw new LpqError('LPQ_TARGET', `${dir}: llama.cpp computes ${names.name} differently: ${difference.what}`, {
      got: String(difference.got),
      expected: String(difference.expected),
      hint: 'Pack for compressed-tensors, gptq or awq.',
    });
  const context = plan.embedding.positions
    ? plan.embedding.positions.count
    : settings.count(table.sizes?.positions ?? ['max_position_embeddings']);
  const unread = unreadOf(subject, tensors);
  return {
    ...subject,
    usual,
    metadata: new Map(ggufEntries(subject, context)),
    experts: expertCount(plan),
    ropeTensors: ropeTensors(subject),
    unread,
    notes: notesOf(subject, unread),
  };
}

function endsIn(tensors: TensorNames, end: string): boolean {
  for (const name of tensors.names()) if (name.endsWith(end)) return true;
  return false;
}

/** Names of a checkpoint's tensors. */
export type TensorNames = Pick<WeightShapes, 'names' | 'has'>;

/** Those of its modules, and of what else there must be; `head`: whether it has a head of its own. */
export function namesOf(modules: Iterable<string>, head: boolean): TensorNames {
  const names = new Set([...modules].map((name) => `${name}.weight`));
  const has = (name: string) =>
    names.has(name) || (/(lm_head|embed_out)\.weight$/.test(name) ? head : !/\.\d+\./.test(name));
  return { names: () => names, has };
}

/** The names of an architecture as a checkpoint spells them: below another path, or without one. */
function spelled(usual: GgufArchitecture, { names }: Architecture): GgufArchitecture {
  const outer = Object.entries(usual.outer).map(([part, to]) => {
    const suffix = /\.(weight|bias)$/.exec(part)?.[0] ?? '';
    const own = (names[OUTER[part.replace(suffix, '')] ?? 'finalNorm'] ?? '').replace('{stream}', '{expert}');
    return [part, typeof to === 'string' ? `${own}${suffix}` : { ...to, to: `${own}${suffix}` }];
  });
  return { ...usual, outer: Object.fromEntries(outer), blocks: names.block.replace(/\.\{layer\}.*$/, '') };
}

/** What tables of architectures call the tensors outside the blocks; those that are not here are the last norm. */
const OUTER: Readonly<Record<string, Exclude<keyof Architecture['names'], 'variants'>>> = {
  output: 'head',
  token_embd: 'embedding',
  position_embd: 'positions',
  per_layer_token_embd: 'perLayer',
  per_layer_model_proj: 'perLayerLinear',
  per_layer_proj_norm: 'perLayerNorm',
  altup_proj: 'streamIn',
  altup_unembd_proj: 'streamOut',
};

/** Shares of a head that turn by time, height and width, where config.json has them. */
function sectionsOf(settings: Config): readonly number[] {
  const rope = settings.object('rope_parameters') ?? settings.object('rope_scaling');
  return rope?.list('mrope_section', 'number') ?? [];
}

function notesOf(subject: GgufSubject, unread: readonly Unread[]): string[] {
  const zeros = unreadNote(unread);
  const notes = zeros === undefined ? [] : [zeros];
  if (!reads(subject, 'windows') && attentions(subject.plan).some(([, { window }]) => window > 0))
    notes.push('llama.cpp ignores the sliding window of this model: it computes longer texts with full attention.');
  const by = scaledRope(subject)?.scaling;
  if (by?.kind === 'yarn' && !by.truncate)
    notes.push(
      "llama.cpp rounds the ends of YaRN's ramp, which this model does not: angles in between are a little off.",
    );
  return notes;
}
