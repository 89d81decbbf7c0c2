import type { SourceCheckpoint } from '../../formats/canonical/source.js';
import type { ModuleDeclaration } from '../../formats/canonical/tensors.js';
import { LpqError } from '../core/error.js';
import type { InputTypeName } from '../core/input-type.js';
import { openBlocks } from '../model/graph.js';
import type { LinearRef, ModelGraph } from '../model/program.js';
import type { ActivationForm } from '../model/source.js';
import { zerosOf } from './grid.js';
import { linearsOf } from './linears.js';
import { KeptModules } from './redo.js';
import { requireGroupSizes, schemeOf } from './rules.js';
import type { QuantizeRequest } from './run.js';
import type { QuantScheme } from './scheme.js';
import { SourceView } from './source-view.js';

/** All linears of a model's blocks, in order, and its head where asked for. Throws LPQ_USAGE for a head that is tied. */
export function linearsToQuantize(graph: ModelGraph, lmHead: boolean): LinearRef[] {
  const linears = graph.blocks.flatMap(linearsOf);
  if (lmHead && graph.head.tied)
    throw new LpqError('LPQ_USAGE', 'lm_head shares its weight with the embedding, so lpq cannot quantize it alone', {
      hint: 'Leave out --lm-head for this model.',
    });
  return lmHead ? [...linears, graph.head] : linears;
}

/** What is quantized, and as what, in the order of the model. */
export type ModulePlan = ReadonlyMap<string, { readonly linear: LinearRef; readonly scheme: QuantScheme }>;

/** The modules a request quantizes, in the order of the model. Throws LPQ_GROUP_SIZE, LPQ_USAGE, LPQ_REDO. */
export function planQuantization(
  graph: ModelGraph,
  request: Pick<QuantizeRequest, 'scheme' | 'rules' | 'lmHead' | 'redo'>,
): ModulePlan {
  const linears = linearsToQuantize(graph, request.lmHead);
  requireGroupSizes(linears, request.scheme, request.rules);
  const plan = new Map<string, { linear: LinearRef; scheme: QuantScheme }>();
  for (const linear of linears) {
    const scheme = schemeOf(linear, request.scheme, request.rules);
    if (scheme) plan.set(linear.name, { linear, scheme });
  }
  if (plan.size === 0 && request.redo)
    throw new LpqError('LPQ_REDO', `--redo matches no module that is quantized`, {
      got: request.redo.match.source,
      expected: `a part of a path such as ${linears[0]?.name}`,
    });
  if (plan.size === 0) throw new LpqError('LPQ_USAGE', 'the rules leave no module to quantize');
  return plan;
}

/**
 * What quantizing makes of each module, before it does. `codes`: linears will read codes (W4Ax), of precisions that nobody knows yet, so
 * all are said to have 8 bits. Throws what reading the model throws.
 */
export function plannedModules(
  checkpoint: SourceCheckpoint,
  request: Pick<QuantizeRequest, 'scheme' | 'rules' | 'lmHead' | 'redo'> & {
    readonly mtp?: boolean;
    readonly codes?: { readonly block: number } | undefined;
    /** Whether the largest magnitudes of inputs will be known; until then the plan states 1. */
    readonly inputScales?: boolean | undefined;
    /** What linears read. */
    readonly inputDtype?: InputTypeName | undefined;
  },
): Map<string, ModuleDeclaration> {
  const source = new SourceView(checkpoint);
  const graph = openBlocks(source, request.mtp);
  const plan = planQuantization(graph, request);
  const kept = request.redo && KeptModules.open(request.redo, source, request.lmHead ? undefined : graph.head.name);
  kept?.close();
  const { codes, inputScales, inputDtype } = request;
  const most = inputScales ? 1 : undefined;
  const form = (k: number): ActivationForm | undefined => {
    if (inputDtype) return { rounded: { type: inputDtype } };
    const blocks = codes ? k / codes.block : 0.5;
    return Number.isInteger(blocks)
      ? { blocks: { bits: new Uint8Array(blocks).fill(8), clip: new Float32Array(blocks).fill(1) } }
      : undefined;
  };
  return new Map([
    ...(kept?.declarations() ?? []),
    ...[...plan].map(
      ([name, { linear, scheme }]) => [name, declareModule(source, linear, scheme, form(linear.k), most)] as const,
    ),
  ]);
}

/** A module as the checkpoint will declare it; `form`: the codes that it reads instead of its input; `most`: the largest magnitude of the input. */
export function declareModule(
  source: SourceView,
  linear: LinearRef,
  scheme: QuantScheme,
  form: ActivationForm | undefined,
  most?: number,
): ModuleDeclaration {
  const size = scheme.granularity.kind === 'channel' ? linear.k : scheme.granularity.size;
  return {
    type: scheme.type.name,
    shape: [linear.n, linear.k],
    granularity: scheme.granularity,
    scales: {
      dtype: scheme.scaleDtype,
      block: [1, size],
      global: scheme.globalScale,
      ...(scheme.twoLevel && { twoLevel: true as const }),
    },
    zeros: zerosOf(scheme),
    groupIndex: false,
    permutation: form?.order !== undefined,
    sparsity: scheme.sparsity ?? 'none',
    ...(most !== undefined && { inputMost: most }),
    ...(form?.rounded && { inputType: form.rounded.type }),
    sourceDtype: source.spec(`${linear.name}.weight`).dtype,
    ...(linear.transposed && { transposed: true }),
    ...(form?.blocks && {
      activations: {
        block: 128 as const,
        bits: Array.from(form.blocks.bits, (bits) => (bits === 4 ? 4 : 8)),
        clip: Array.from(form.blocks.clip, printable),
      },
    }),
  };
}

/** The shortest decimal that gives the same f32. */
function printable(value: number): number {
  for (let digits = 1; digits < 9; digits++)
    if (Math.fround(Number(value.toPrecision(digits))) === value) return Number(value.toPrecision(digits));
  return value;
}
