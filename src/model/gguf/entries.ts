import { bool, f32, type GgufValue, text, u32 } from '../../../formats/gguf/metadata.js';
import { PER_LAYER_ROWS } from '../../../formats/gguf/names.js';
import type { AttentionPlan, ModelPlan, NormPlan } from '../plan.js';
import { attentions, type GgufSubject, latents, mixers, mixtures, reads } from './facts.js';
import { ropeEntries } from './rope.js';

type Entry = readonly [key: string, value: GgufValue];

/** What llama.cpp calls shares of experts. */
const GATING = { softmax: 1, sigmoid: 2 } as const;

/** A number, or a list of them where blocks differ. */
function each(values: readonly number[]): GgufValue {
  const [first = 0] = values;
  return values.every((value) => value === first) ? u32(first) : { type: 'i32s', value: values };
}

const when = (holds: boolean, ...entries: readonly Entry[]): readonly Entry[] => (holds ? entries : []);

/** Keys of the model, under its name in llama.cpp; `context`: tokens that it was trained on. */
export function ggufEntries(subject: GgufSubject, context: number): Entry[] {
  const { plan, names, modelType } = subject;
  const entries: readonly Entry[] = [
    ['vocab_size', u32(plan.vocab)],
    ['context_length', u32(plan.embedding.positions?.count ?? context)],
    ['embedding_length', u32(plan.hidden)],
    ['block_count', u32(plan.blocks.length)],
    ['feed_forward_length', each(widths(plan))],
    ...attentionEntries(subject),
    normEntry(plan),
    ...when(subject.computes.bothNorms === true, ['attention.layer_norm_epsilon', f32(normOf(plan)?.epsilon ?? 0)]),
    ...ropeEntries(subject),
    ...when(reads(subject, 'rotates'), [
      'rope.scaling.finetuned',
      bool(attentions(plan).every(([, { rope }]) => rope !== undefined)),
    ]),
    ...multiplierEntries(subject),
    ...mixerEntries(subject),
    ...expertEntries(subject),
  ];
  return [
    ['general.architecture', text(names.name)],
    ['lpq.model_type', text(modelType)],
    ...when((plan.perLayer?.vocab ?? plan.vocab) < plan.vocab, [PER_LAYER_ROWS, u32(plan.perLayer?.vocab ?? 0)]),
    ...entries.map(([key, value]): Entry => [`${names.name}.${key}`, value]),
  ];
}

/** Of the MLPs of all blocks; where none has one, of the experts. */
function widths(plan: ModelPlan): number[] {
  if (plan.blocks.some(({ mlp }) => mlp.kind === 'nothing'))
    return plan.blocks.map(({ mlp }) =>
      mlp.kind === 'nothing' ? 0 : mlp.kind === 'experts' ? mlp.intermediate : mlp.down.k,
    );
  const dense = plan.blocks.flatMap(({ mlp }) => {
    if (mlp.kind === 'experts') return mlp.apart && mlp.shared ? [mlp.shared.intermediate] : [];
    return mlp.kind === 'nothing' ? [] : [mlp.down.k];
  });
  const [first = mixtures(plan)[0]?.intermediate ?? 0] = dense;
  const uniform = dense.every((width) => width === first);
  return uniform
    ? [first]
    : plan.blocks.map(({ mlp }) => (mlp.kind === 'experts' || mlp.kind === 'nothing' ? 0 : mlp.down.k));
}

function attentionEntries(subject: GgufSubject): readonly Entry[] {
  const { plan } = subject;
  const [latent] = latents(plan);
  if (latent) {
    const { heads, query, latent: rank, plain, rotary, value } = latent;
    return [
      ['attention.head_count', u32(heads)],
      ['attention.head_count_kv', u32(heads)],
      ['attention.key_length', u32(plain + rotary)],
      ['attention.value_length', u32(value)],
      ['attention.q_lora_rank', u32(query.kind === 'latent' ? query.a.n : 0)],
      ['attention.kv_lora_rank', u32(rank)],
    ];
  }
  const all = attentions(plan).map(([, attention]) => attention);
  // Blocks without a window have the sizes, where those with one have others.
  const first = all.find((attention) => attention.window === 0) ?? all[0];
  const local = all.find((attention) => attention.window > 0);
  if (!first) return [];
  const window = Math.max(...all.map((attention) => attention.window));
  return [
    ['attention.head_count', u32(first.heads)],
    [
      'attention.head_count_kv',
      each(subject.computes.mixer?.told === 'heads' ? everyHeads(plan) : all.map(({ kvHeads }) => kvHeads)),
    ],
    ['attention.key_length', u32(first.headDim)],
    ['attention.value_length', u32(first.valueDim)],
    ...when(
      reads(subject, 'local-heads') && local !== undefined,
      ['attention.key_length_swa', u32(local?.headDim ?? 0)],
      ['attention.value_length_swa', u32(local?.valueDim ?? 0)],
    ),
    ...when(reads(subject, 'shared-kv'), [
      'attention.shared_kv_layers',
      u32(all.filter((attention) => attention.reads !== undefined).length),
    ]),
    ...indexerEntries(subject, all),
    ...when(reads(subject, 'per-layer'), ['embedding_length_per_layer_input', u32(plan.perLayer?.size ?? 0)]),
    ...when(
      window > 0 && reads(subject, 'windows'),
      ['attention.sliding_window', u32(window)],
      ['attention.sliding_window_pattern', { type: 'bools', value: all.map((attention) => attention.window > 0) }],
    ),
    ...when(reads(subject, 'value-scale') && first.valueScale !== 1, ['attention.value_scale', f32(first.valueScale)]),
    ...when(reads(subject, 'attention-scale'), ['attention.scale', f32(first.scale)]),
    ...when(reads(subject, 'soft-cap'), ['attn_logit_softcapping', f32(first.softCap)]),
    ...when(reads(subject, 'temperature') && first.temperature !== undefined, [
      'attention.temperature_scale',
      f32(first.temperature?.beta ?? 0),
    ]),
  ];
}

/** Sizes of the indexers, which are those of all. */
function indexerEntries(subject: GgufSubject, all: readonly AttentionPlan[]): readonly Entry[] {
  const indexer = all.find((attention) => attention.indexer !== undefined)?.indexer;
  if (!reads(subject, 'indexer') || indexer?.kind !== 'own') return [];
  const { heads, dim, top, block, local } = indexer;
  const sizes = { head_count: heads, key_length: dim, top_k: top, block_size: block, local_blocks: local };
  return Object.entries(sizes).map(([key, size]) => [`attention.indexer.${key}`, u32(size)]);
}

/** Heads of keys of every block, 0 of those without attention. */
const everyHeads = ({ blocks }: ModelPlan): number[] =>
  blocks.map(({ attention }) => (attention.kind === 'attention' ? attention.kvHeads : 0));

/** Sizes of recurrent layers. */
function mixerEntries(subject: GgufSubject): readonly Entry[] {
  const { plan, computes } = subject;
  const core = mixers(plan)[0]?.[1].core;
  if (!core) return [];
  const list = plan.blocks.map(({ attention }) => attention.kind === 'recurrent');
  const told = when(computes.mixer?.told === 'list', ['attention.recurrent_layers', { type: 'bools', value: list }]);
  if (core.kind === 'conv') return [['shortconv.l_cache', u32(core.conv.taps)]];
  const [convolved] = core.kind === 'delta' ? core.convs : [core.conv];
  const [inner, size, rank, groups] =
    core.kind === 'delta'
      ? [core.heads * core.valueDim, core.keyDim, core.heads, core.keyHeads]
      : [core.heads * core.headDim, core.size, core.kind === 'mamba' ? core.rank : core.heads, core.groups];
  return [
    ['ssm.conv_kernel', u32(convolved?.taps ?? 0)],
    ['ssm.inner_size', u32(inner)],
    ['ssm.state_size', u32(size)],
    ['ssm.time_step_rank', u32(rank)],
    ...when(core.kind !== 'mamba', ['ssm.group_count', u32(groups)]),
    ...told,
  ];
}

/** The norm that stands for all. */
export function normOf({ finalNorm, blocks }: ModelPlan): NormPlan | undefined {
  return finalNorm ?? blocks[0]?.attention.norm;
}

function normEntry(plan: ModelPlan): Entry {
  const norm = normOf(plan);
  const key = norm?.kind === 'layer' ? 'layer_norm_epsilon' : 'layer_norm_rms_epsilon';
  return [`attention.${key}`, f32(norm?.epsilon ?? 0)];
}

function multiplierEntries(subject: GgufSubject): readonly Entry[] {
  const { embedding, logits, blocks } = subject.plan;
  return [
    ...when(reads(subject, 'logit-cap'), ['final_logit_softcapping', f32(logits.softCap)]),
    ...when(reads(subject, 'logit-scale'), ['logit_scale', f32(logits.scale)]),
    ...when(reads(subject, 'logit-divisor'), ['logit_scale', f32(1 / logits.scale)]),
    ...when(reads(subject, 'embedding-scale'), ['embedding_scale', f32(embedding.scale)]),
    ...when(reads(subject, 'residual-scale'), ['residual_scale', f32(blocks[0]?.attention.multiplier ?? 1)]),
    ...when(reads(subject, 'parallel'), ['use_parallel_residual', bool(blocks[0]?.parallel ?? false)]),
  ];
}

/** How many blocks there are for each with experts. */
export function stepOf({ blocks }: Pick<ModelPlan, 'blocks'>): number {
  const sparse = blocks.flatMap(({ mlp }, index) => (mlp.kind === 'experts' ? [index] : []));
  const [first = 0, second = first + 1] = sparse;
  return sparse.length < 2 ? first + 1 : second - first;
}

function expertEntries({ plan, computes }: GgufSubject): readonly Entry[] {
  const [first] = mixtures(plan);
  if (!first) return [];
  const { routing, intermediate, shared } = first;
  const leading = plan.blocks.findIndex(({ mlp }) => mlp.kind === 'experts');
  const { router } = computes;
  return [
    ['expert_count', u32(first.experts.length)],
    ['expert_used_count', u32(routing.perToken)],
    ['expert_feed_forward_length', u32(intermediate)],
    ...when(shared !== undefined, ['expert_shared_feed_forward_length', u32(shared?.intermediate ?? 0)]),
    ...when((shared?.intermediate ?? 0) % intermediate === 0, [
      'expert_shared_count',
      u32((shared?.intermediate ?? 0) / intermediate),
    ]),
    ...when(router?.normalize === 'key', ['expert_weights_norm', bool(routing.normalize)]),
    ...when(router?.scale === true && routing.scale !== 1, ['expert_weights_scale', f32(routing.scale)]),
    ...when(router?.sigmoid === 'key', ['expert_gating_func', u32(routing.sigmoid ? GATING.sigmoid : GATING.softmax)]),
    ...when(
      routing.groups > 1,
      ['expert_group_count', u32(routing.groups)],
      ['expert_group_used_count', u32(routing.topGroups)],
    ),
    ...when(first.latent !== undefined, ['moe_latent_size', u32(first.latent?.into.n ?? 0)]),
    ...when(router?.leadingDense === true, ['leading_dense_block_count', u32(leading)]),
    ...(router?.step === undefined ? [] : [[router.step, u32(stepOf(plan))] as const]),
  ];
}
