import type { AttentionPlan } from '../plan.js';
import { type Difference, differs, first, near } from './differs.js';
import { attentions, type GgufSubject, latents, reads, ropes } from './facts.js';
import { scaledRope } from './rope.js';

/** What of one block's attention llama.cpp would compute otherwise. */
export function ofAttention(subject: GgufSubject, index: number, own: AttentionPlan): Difference | undefined {
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
    reads(subject, 'indexer') ? undefined : differs(part('an indexer'), own.indexer !== undefined, false),
    reads(subject, 'shared-kv')
      ? undefined
      : differs(part('keys of other blocks, or keys as values'), (own.reads ?? own.keysAsValues) !== undefined, false),
  ]);
}

const growth = (by: AttentionPlan['temperature']): string => (by ? `${by.beta}, ${by.length}, ${by.offset}` : 'no');

/** Which blocks turn, and which elements. */
export function rotation(subject: GgufSubject): Difference | undefined {
  const { plan, computes, names } = subject;
  const swapped = Object.values(names.block).some(
    (part) => typeof part !== 'string' && (part.fix === 'interleaved-q' || part.fix === 'halved-q'),
  );
  const style = (computes.pairs === 'neighbours') === swapped ? 'half' : 'interleaved';
  const windowed = attentions(plan).some(([, { window }]) => window > 0);
  const still = attentions(plan)[0]?.[1].rope === undefined;
  const turned = attentions(plan).map(([index, own]) => {
    if (reads(subject, 'rotates'))
      return differs(`whether block ${index} rotates positions`, own.rope === undefined, still);
    const turns = computes.pairs !== undefined && (computes.turns?.(index, own, windowed) ?? true);
    return differs(`whether block ${index} rotates positions`, own.rope !== undefined, turns);
  });
  const all = [...attentions(plan).map(([, own]) => own.rope), ...latents(plan).map(({ rope }) => rope)];
  const whole = attentions(plan)[0]?.[1].headDim;
  const { whole: base, local } = ropes(plan);
  return first([
    differs('axes of mrope_section', subject.sections.length, 3, !computes.sections || subject.sections.length <= 3),
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

/** How positions are scaled. */
export function scaling(subject: GgufSubject): Difference | undefined {
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
