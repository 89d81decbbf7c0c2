import type { AttentionPlan, BlockPlan } from '../plan.js';
import type { ExpertsPlan } from '../plan-experts.js';
import type { Router } from './computes.js';
import { normOf, stepOf } from './entries.js';
import { attentions, type GgufSubject, latents, mixers, mixtures, reads, ropes } from './facts.js';
import { scaledRope } from './rope.js';

/** What differs: in words, with what the model has and what llama.cpp computes. */
export interface Difference {
  readonly what: string;
  readonly got: unknown;
  readonly expected: unknown;
}

type Check = (subject: GgufSubject) => Difference | undefined;

const near = (a: number, b: number): boolean => Math.abs(a - b) <= 1e-6 * Math.abs(b);

/** The first thing that llama.cpp would compute otherwise than the model; undefined where there is none. */
export function differenceOf(subject: GgufSubject): Difference | undefined {
  for (const check of CHECKS) {
    const found = check(subject);
    if (found) return found;
  }
  return undefined;
}

const differs = (what: string, got: unknown, expected: unknown, same = got === expected): Difference | undefined =>
  same ? undefined : { what, got, expected };

const first = (list: readonly (Difference | undefined)[]): Difference | undefined =>
  list.find((each) => each !== undefined);

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
    streams ??
    hyper ??
    projectOut ??
    plan.blocks.find(({ altUp }) => altUp)?.altUp;
  return first([
    differs('rows of per-layer embeddings', perLayer?.vocab ?? plan.vocab, plan.vocab),
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
    reads(subject, 'logit-cap') ? undefined : differs('a cap of the logits', softCap, 0),
    reads(subject, 'embedding-scale')
      ? undefined
      : differs('what multiplies embeddings', plan.embedding.scale, embedding, near(plan.embedding.scale, embedding)),
  ]);
}

function ofAttention(subject: GgufSubject, index: number, own: AttentionPlan): Difference | undefined {
  const { plan, computes } = subject;
  const scale = computes.scale?.(plan, own) ?? 1 / Math.sqrt(own.headDim);
  const head = attentions(plan)[0]?.[1] as AttentionPlan;
  const part = (what: string) => `${what} of block ${index}`;
  return first([
    reads(subject, 'attention-scale')
      ? differs(part('the scale of attention'), own.scale, head.scale)
      : differs(part('the scale of attention'), own.scale, scale, near(own.scale, scale)),
    reads(subject, 'soft-cap')
      ? differs(part('the cap of attention'), own.softCap, head.softCap)
      : differs(part('a cap of attention'), own.softCap, 0),
    reads(subject, 'temperature')
      ? undefined
      : differs(part('queries that grow'), growth(own.temperature), own.rope ? 'no' : growth(computes.temperature)),
    reads(subject, 'sinks') ? undefined : differs(part('sinks'), own.sinks !== undefined, false),
    reads(subject, 'output-bias') ? undefined : differs(part("a bias of attention's output"), own.o.bias, false),
    differs(part('chunks of attention'), own.chunk, own.rope ? (computes.chunk ?? 0) : 0),
    differs(part('gates of outputs'), own.outputGate ?? false, computes.outputGate ?? false),
    differs(part('heads'), own.heads, head.heads),
    reads(subject, 'local-heads') ? undefined : differs(part('dimensions of heads'), own.headDim, head.headDim),
    differs(part('a norm of values'), own.vNorm !== undefined, computes.valueNorm ?? false),
    reads(subject, 'kv-heads') ? undefined : differs(part('heads of keys and values'), own.kvHeads, head.kvHeads),
    reads(subject, 'value-length') ? undefined : differs(part('dimensions of values'), own.valueDim, own.headDim),
    reads(subject, 'value-scale') ? undefined : differs(part('what multiplies values'), own.valueScale, 1),
    differs(
      part('norms of q and k after the rotation'),
      own.normsLast ?? false,
      computes.normsLast ?? false,
      !own.qNorm || (own.normsLast ?? false) === (computes.normsLast ?? false),
    ),
    differs(part('an indexer'), own.indexer !== undefined, false),
    reads(subject, 'shared-kv')
      ? undefined
      : differs(part('keys of other blocks, or keys as values'), (own.reads ?? own.keysAsValues) !== undefined, false),
  ]);
}

const growth = (by: AttentionPlan['temperature']): string => (by ? `${by.beta}, ${by.length}, ${by.offset}` : 'no');

/** Which blocks turn, and which elements. */
function rotation(subject: GgufSubject): Difference | undefined {
  const { plan, computes, names } = subject;
  const swapped = Object.values(names.block).some((part) => typeof part !== 'string' && part.fix === 'interleaved-q');
  const style = computes.pairs === 'neighbours' && !swapped ? 'interleaved' : 'half';
  const windowed = attentions(plan).some(([, { window }]) => window > 0);
  const turned = attentions(plan).map(([index, own]) => {
    const turns = computes.pairs !== undefined && (computes.turns?.(index, own, windowed) ?? true);
    return differs(`whether block ${index} rotates positions`, own.rope !== undefined, turns);
  });
  const all = [...attentions(plan).map(([, own]) => own.rope), ...latents(plan).map(({ rope }) => rope)];
  const whole = attentions(plan)[0]?.[1].headDim;
  const { whole: base, local } = ropes(plan);
  return first([
    ...turned,
    ...all.flatMap((rope) => (rope ? [differs('pairs of elements that turn together', rope.style, style)] : [])),
    reads(subject, 'partial') || whole === undefined
      ? undefined
      : first(
          attentions(plan).map(
            ([, { rope, headDim }]) => rope && differs('a part of each head that is rotated', rope.rotary, headDim),
          ),
        ),
    base && local && !reads(subject, 'local-theta')
      ? differs('rope_theta of blocks with a window', local.theta, base.theta)
      : undefined,
  ]);
}

function scaling(subject: GgufSubject): Difference | undefined {
  const rope = scaledRope(subject);
  if (!rope) return undefined;
  const { scaling: by } = rope;
  const { whole, local } = ropes(subject.plan);
  const [latent] = latents(subject.plan);
  const expressible = 'default, linear, yarn with its usual constants, or what llama.cpp reads factors for';
  const cannot = (got: string): Difference => ({ what: 'this RoPE scaling', got, expected: expressible });
  if (by.kind === 'dynamic') return cannot(by.kind);
  if (by.kind === 'proportional' && !reads(subject, 'rope-freqs')) return cannot(by.kind);
  if (by.kind === 'llama3' && !reads(subject, 'rope-freqs')) return cannot('llama3');
  if (by.kind === 'longrope') {
    if (!reads(subject, 'rope-factors')) return cannot('longrope');
    if (by.attention !== by.longAttention) return cannot('longrope with two multipliers');
  }
  if (by.kind === 'yarn') {
    if (!reads(subject, 'yarn-betas') && (by.betaFast !== 32 || by.betaSlow !== 1))
      return cannot(`yarn with beta_fast ${by.betaFast}, beta_slow ${by.betaSlow}`);
    if (latent && !near(by.attention, 1)) return cannot(`yarn with latent attention and an mscale of ${by.attention}`);
  }
  if (whole && local && reads(subject, 'windows')) {
    const expected = subject.computes.localScaling ? by.kind : 'default';
    return differs('the RoPE scaling of blocks with a window', local.scaling.kind, expected);
  }
  return undefined;
}

function ofBlock(subject: GgufSubject, block: BlockPlan): Difference | undefined {
  const { plan, computes } = subject;
  const { mlp, attention } = block;
  const parallel = reads(subject, 'parallel') ? block.parallel : (computes.parallel?.(plan) ?? false);
  const usual = plan.blocks[0]?.attention.multiplier ?? 1;
  const residual = reads(subject, 'residual-scale') ? usual : 1;
  const activations = computes.activation ?? ['silu'];
  const own = mlp.kind === 'experts' || mlp.kind === 'nothing' ? undefined : mlp.activation;
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
    differs('a limited gate', 'clamped' in mlp && mlp.clamped !== undefined, false),
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
      router.clamped ? isOss(gate) : activation,
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

const isOss = (gate: ExpertsPlan['gate']): boolean =>
  gate.kind === 'clamped' && near(gate.alpha, 1.702) && near(gate.limit, 7);
