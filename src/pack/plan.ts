import type { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import { moduleTensors } from '../../formats/canonical/tensors.js';
import type { SafetensorsDtype } from '../../formats/safetensors/dtypes.js';
import type { TensorSpec } from '../../formats/safetensors/header.js';
import { typed } from '../../native/binding.js';
import { LpqError } from '../core/error.js';
import type { Decision, Fallback, ModuleFacts, PackTarget } from './target.js';
import { packTarget } from './targets/index.js';

/** What packing will do, before anything is written: for --dry-run and for packCheckpoint. */
export interface PackPlan {
  readonly target: PackTarget;
  /** What was asked for; differs from target.name when the checkpoint needed another. */
  readonly requested: string;
  readonly notes: readonly string[];
  readonly decisions: ReadonlyMap<string, Decision>;
  /** Tensors that go through unchanged. */
  readonly carried: readonly TensorSpec[];
  /** Two-dimensional NAME.weight among them that are linears: what readers must be told is not quantized. */
  readonly plainLinears: readonly string[];
  /** Set when the target takes no module at all: packing would throw this. */
  readonly refusal: LpqError | undefined;
}

/** Decides every module of a checkpoint for a target. Reads zero points, and else only the manifest. Throws LPQ_TARGET. */
export function planPack(checkpoint: CanonicalCheckpoint, targetName: string): PackPlan {
  const modules = new Map(
    checkpoint
      .moduleNames()
      .map((name) => [name, { module: checkpoint.module(name), facts: factsOf(checkpoint, name) }]),
  );
  const wanted = packTarget(targetName);
  const redirect = wanted.resolve?.(modules);
  const target = redirect?.target ?? wanted;
  const decisions = new Map<string, Decision>();
  for (const [name, { module, facts }] of modules) decisions.set(name, target.plan(name, module, facts));
  const carried = Object.keys(checkpoint.manifest.carried).map((name): TensorSpec => {
    const { dtype, shape } = checkpoint.weights.spec(name);
    return { name, dtype, shape };
  });
  return {
    target,
    requested: targetName,
    notes: redirect ? [redirect.note] : [],
    decisions,
    carried,
    plainLinears: carried.filter(isLinear).map(({ name }) => name.slice(0, -'.weight'.length)),
    refusal: refusal(checkpoint.dir, target, decisions),
  };
}

/** The tensors that a module will have in the artifact. */
export function plannedTensors(checkpoint: CanonicalCheckpoint, name: string, decision: Decision): TensorSpec[] {
  if (decision.action !== 'fallback') return [...decision.tensors];
  const module = checkpoint.module(name);
  if (decision.form === 'carried') return [...moduleTensors(name, module).values()];
  return [{ name: `${name}.weight`, dtype: plainDtype(module.sourceDtype), shape: module.shape }];
}

/** The dtype of a dequantized weight: the source's where that is a plain float, else BF16. */
export function plainDtype(sourceDtype: string): Extract<SafetensorsDtype, 'F32' | 'F16' | 'BF16'> {
  const name = sourceDtype.toUpperCase();
  return name === 'F32' || name === 'F16' || name === 'BF16' ? name : 'BF16';
}

function factsOf(checkpoint: CanonicalCheckpoint, name: string): ModuleFacts {
  if (checkpoint.module(name).zeros.kind !== 'int') return {};
  const zeros = checkpoint.require(name, 'zeros');
  let [low, high] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  for (const zero of typed<Uint8Array | Int16Array>(zeros)) {
    low = Math.min(low, zero);
    high = Math.max(high, zero);
  }
  zeros.dispose();
  return { zeroRange: [low, high] };
}

function isLinear({ name, dtype, shape }: TensorSpec): boolean {
  return (
    name.endsWith('.weight') &&
    shape.length === 2 &&
    ['F64', 'F32', 'F16', 'BF16'].includes(dtype) &&
    !/(^|\.)(embed\w*|wte|wpe|\w*embeddings?)\.weight$/.test(name)
  );
}

function refusal(dir: string, target: PackTarget, decisions: ReadonlyMap<string, Decision>): LpqError | undefined {
  const fallbacks = [...decisions].filter((entry): entry is [string, Fallback] => entry[1].action === 'fallback');
  const [first] = fallbacks;
  if (decisions.size === 0)
    return new LpqError('LPQ_TARGET', `${dir} has no quantized module to pack`, {
      hint: 'Give the output of lpq quantize.',
    });
  if (!first || fallbacks.length < decisions.size) return undefined;
  const [name, { reason, remedy }] = first;
  return new LpqError('LPQ_TARGET', `target ${target.name} takes no module of ${dir}: ${name}: ${reason}`, {
    got: [...new Set(fallbacks.map(([, each]) => each.reason))].slice(0, 5).join('; '),
    expected: target.describe,
    hint: remedy,
  });
}
