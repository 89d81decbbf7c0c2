import type { BlockPlan } from '../plan.js';
import type { ExpertsPlan } from '../plan-experts.js';
import type { ClampedGate } from '../plan-mlp.js';
import { ofAttention, rotation, scaling } from './check-attention.js';
import type { Router } from './computes.js';
import { type Difference, differs, first, near } from './differs.js';
import { normOf, stepOf } from './entries.js';
import { attentions, type GgufSubject, mixers, mixtures, reads } from './facts.js';

type Check = (subject: GgufSubject) => Difference | undefined;

/** The first thing that llama.cpp would compute otherwise than the model; undefined where there is none. */
export function differenceOf(subject: GgufSubject): Difference | undefined {
  for (const check of CHECKS) {
    const found = check(subject);
    if (found) return found;
  }
  return undefined;
}

const CHECKS: readonly Check[] = [
  (subject) => {
    const why = subject.computes.but?.(subject.plan);
    return why === undefined ? undefined : { what: why, got: subject.modelType, expected: 'a model that it computes' };
  },
  kinds,
  ({ plan, computes: { head = 'either' } }) =>
    first([
      head === 'own' ? differs('it wants a head of its own (tie_word_embeddings)', plan.tied, false) : undefined,
      head === 'tied' ? differs('the head is the embedding (tie_word_embeddings)', plan.tied, true) : undefined,
    ]),
  multipliers,
  (subject) => first(attentions(subject.plan).map(([index, attention]) => ofAttention(subject, index, attention))),
  rotation,
  scaling,
  (subject) => first(subject.plan.blocks.map((block) => ofBlock(subject, block))),
  (subject) => first(mixtures(subject.plan).map((mixture) => ofExperts(subject, mixture))),
  ({ plan, names }) => differs('norms multiply by 1 + weight', normOf(plan)?.offset === 1, names.normsPlusOne === true),
];

/** Parts that llama.cpp has nothing for. */
function kinds({ plan, names, computes }: GgufSubject): Difference | undefined {
  const wanted = names.latent === undefined ? 'attention' : 'mla';
  const core = mixers(plan)[0]?.[1].core.kind;
  const other = plan.blocks.find(
    ({ attention: { kind } }) =>
      kind !== wanted && !(computes.mixer && kind === 'recurrent') && !(computes.single && kind === 'nothing'),
  )?.attention.kind;
  const { perLayer, streams, hyper, projectOut } = plan;
  const extra =
    (computes.reads?.includes('per-layer') ? undefined : perLayer) ??
    (computes.reads?.includes('streams') ? undefined : streams) ??
    hyper ??
    projectOut;
  const rows = perLayer?.vocab ?? plan.vocab;
  return first([
    differs('rows of per-layer embeddings beyond the vocabulary', rows, plan.vocab, rows <= plan.vocab),
    differs('what mixes the tokens of a block', other ?? wanted, wanted),
    differs('what stands around its blocks', extra === undefined ? 'nothing' : 'more', 'nothing'),
    core === undefined ? undefined : differs('the kind of recurrent layers', core, computes.mixer?.kind),
    differs('biases of convolutions', biasedConv(plan), false),
    ...mixers(plan).map(([, { core: own }]) =>
      own.kind === 'delta' ? differs('dimensions of values in linear attention', own.valueDim, own.keyDim) : undefined,
    ),
    // It has no bound, and steps of states are hardly ever below the usual one.
    ...mixers(plan).map(([, { core: own }]) =>
      own.kind === 'mamba2' ? differs('time_step_min', own.least, 0.001, own.least <= 0.001) : undefined,
    ),
    computes.single
      ? undefined
      : differs('MLPs in every block', plan.blocks.some(({ mlp }) => mlp.kind === 'nothing') ? 'no' : 'yes', 'yes'),
  ]);
}

/** Biases of short convolutions, which llama.cpp has no place for. */
const biasedConv = (plan: GgufSubject['plan']): boolean =>
  mixers(plan).some(
    ([, { core, feed }]) => core.kind === 'conv' && (core.conv.bias !== undefined || feed[0]?.bias === true),
  );

function multipliers(subject: GgufSubject): Difference | undefined {
  const { plan, computes } = subject;
  const { scale, softCap } = plan.logits;
  const embedding = computes.embeddingScale?.(plan) ?? 1;
  const scaled = reads(subject, 'logit-scale') || reads(subject, 'logit-divisor');
  return first([
    scaled ? undefined : differs('what multiplies the logits', scale, 1),
    reads(subject, 'logit-cap') ? undefined : differs('a cap of the logits', softCap, computes.logitCap ?? 0),
    reads(subject, 'embedding-scale')
      ? undefined
      : differs('what multiplies embeddings', plan.embedding.scale, embedding, near(plan.embedding.scale, embedding)),
  ]);
}

function ofBlock(subject: GgufSubject, block: BlockPlan): Difference | undefined {
  const { plan, computes } = subject;
  const { mlp, attention } = block;
  const parallel = reads(subject, 'parallel') ? block.parallel : (computes.parallel?.(plan) ?? false);
  const usual = plan.blocks[0]?.attention.multiplier ?? 1;
  const residual = reads(subject, 'residual-scale') ? usual : 1;
  const activations = computes.activation ?? ['silu'];
  const stated = mlp.kind === 'experts' || mlp.kind === 'nothing' ? undefined : mlp.activation;
  const own = typeof stated === 'object' ? 'xielu' : stated;
  const limited = 'clamped' in mlp ? mlp.clamped : undefined;
  const usualGate = computes.clamped && mlp.kind !== 'experts';
  const sameGate = usualGate ? limited !== undefined && isOss(limited) : limited === undefined;
  return first([
    differs('attention and MLP side by side', block.parallel, parallel),
    differs('what multiplies a branch', 'multiplier' in mlp ? mlp.multiplier : residual, residual),
    differs('what multiplies a branch', attention.multiplier, residual),
    own === undefined
      ? undefined
      : differs(
          'the activation',
          own,
          activations.join(' or '),
          activations.some((each) => each === own),
        ),
    reads(subject, 'mlp-bias') || mlp.kind === 'experts' || mlp.kind === 'nothing'
      ? undefined
      : differs('biases of MLPs', mlp.down.bias, false),
    differs('a limited gate', limited !== undefined, computes.clamped ?? false, sameGate),
  ]);
}

function ofExperts({ plan, computes }: GgufSubject, mixture: ExpertsPlan): Difference | undefined {
  const { router } = computes;
  if (!router) return { what: 'experts', got: mixture.experts.length, expected: 0 };
  const { routing, gate, latent, apart } = mixture;
  const keyed = <T>(said: T | 'key' | undefined, own: T, otherwise: T): T =>
    said === 'key' ? own : (said ?? otherwise);
  const leading = plan.blocks.findIndex(({ mlp }) => mlp.kind === 'experts');
  const grouped = routing.groups > 1;
  // Plans have what multiplies the branch in it.
  const residual = plan.blocks[leading]?.attention.multiplier;
  const activation =
    gate.kind === (router.plain ? 'plain' : 'gated') &&
    'activation' in gate &&
    (computes.activation ?? ['silu']).some((each) => each === gate.activation);
  return first([
    ...(router.anywhere ? [] : [placed(plan, router)]),
    differs('norm_topk_prob', routing.normalize, keyed(router.normalize, routing.normalize, false)),
    differs('sigmoids in the router', routing.sigmoid, keyed(router.sigmoid, routing.sigmoid, false)),
    router.scale ? undefined : differs('routed_scaling_factor', routing.scale, residual),
    differs('groups of experts', routing.groups, 1, !grouped || (router.groups === true && routing.topTwo)),
    differs('weights of experts on their inputs', routing.weighInput, router.weighInput ?? false),
    differs("SparseMixer's jitter", routing.jitter, 0),
    differs('a table of experts by token', routing.root !== undefined, false),
    differs(
      'gates of experts',
      gate.kind,
      router.plain ? 'plain' : router.clamped ? 'clamped' : 'gated',
      router.clamped ? gate.kind === 'clamped' && isOss(gate) : activation,
    ),
    router.latent ? undefined : differs('experts on latent vectors', latent !== undefined, false),
    differs('experts apart from the MLP', apart !== undefined, router.apart ?? false),
  ]);
}

/** Where llama.cpp expects experts. */
function placed({ blocks }: GgufSubject['plan'], { leadingDense, step }: Router): Difference | undefined {
  const leading = blocks.findIndex(({ mlp }) => mlp.kind === 'experts');
  const every = step === undefined || leadingDense ? 1 : stepOf({ blocks });
  const wrong = blocks.findIndex(({ mlp }, index) => {
    const sparse = leadingDense ? index >= leading : (index + 1) % every === 0;
    return sparse !== (mlp.kind === 'experts');
  });
  return wrong < 0
    ? undefined
    : { what: `whether block ${wrong} has experts`, got: blocks[wrong]?.mlp.kind, expected: 'another kind' };
}

const isOss = ({ alpha, limit }: ClampedGate): boolean => near(alpha, 1.702) && near(limit, 7);
