import { statSync } from 'node:fs';
import path from 'node:path';
import { type DirectoryKind, isSource, SourceCheckpoint } from '../../../formats/canonical/source.js';
import { foreignSettings } from '../../../formats/foreign/settings.js';
import { Checkpoint, readConfig } from '../../../formats/safetensors/checkpoint.js';
import { LpqError } from '../../core/error.js';
import { openModel, unusedTensors } from '../../model/graph.js';
import type { ModelGraph } from '../../model/program.js';
import { facts } from '../terminal/table.js';
import { line } from '../terminal/terminal.js';
import { bytes, count } from '../terminal/units.js';
import { bitsPerWeight, type ForeignInspection, foreignTable, inspectForeign, inspectModules } from './foreign.js';
import { type Inspection, sum, tensorBytes } from './inspection.js';

/** A checkpoint that lpq did not write: plain, published in low bits, or quantized by another tool. */
export function inspectSource(dir: string, kind: DirectoryKind): Inspection {
  const weights = Checkpoint.open(dir);
  try {
    const tensors = tensorSummary(weights);
    if (!isSource(dir)) return foreignInspection(dir, kind, weights, tensors);
    const { model, parameters, problem } = graphOf(dir);
    const low = kind === 'source' ? undefined : inspectModules(dir, weights);
    const base = { kind, dir, ...tensors, parameters, ...(low && lowBitData(low)) };
    const rows = tensorFacts(dir, weights, base);
    const head = facts([
      [
        'kind',
        kind === 'source' ? 'source checkpoint' : `source checkpoint, published in ${kind.slice('foreign:'.length)}`,
      ],
      ...(model ? modelFacts(model) : [['architecture', `unknown: ${String(problem?.got)}`] as const]),
      ...rows,
      ...(low ? [lowBitFact(low)] : []),
    ]);
    const text = low
      ? `${head}\n${foreignTable(low.modules)}${low.notes.map((note) => line`${note}\n`).join('')}`
      : head;
    return { data: { ...base, model: model ?? null, ...(problem && { problem: problem.message }) }, text };
  } finally {
    weights.close();
  }
}

function foreignInspection(dir: string, kind: DirectoryKind, weights: Checkpoint, tensors: TensorSummary): Inspection {
  const settings = foreignSettings(dir, readConfig(dir))?.settings;
  const { modules, carried, notes, graph, unused = [], problem } = inspectForeign(dir, weights);
  const model = graph ? modelSummary(graph, unused) : undefined;
  const quantizedWeights = sum(modules.map(({ shape: [n, k] }) => n * k));
  // Words are no parameters: what can be read counts as the weights that it stands for.
  const parameters = modules.length > 0 ? quantizedWeights + carried : tensors.parameters;
  const rows = tensorFacts(dir, weights, { ...tensors, parameters });
  const text = [
    facts([
      ['kind', `quantized by another tool (${kind.slice('foreign:'.length)})`],
      ...(model ? modelFacts(model) : []),
      ...rows,
      ...(modules.length > 0 ? [lowBitFact({ modules })] : []),
      ...(problem ? [['problem', `${problem.message}; lpq doctor ${dir} explains it`] as const] : []),
    ]),
    ...(modules.length > 0 ? ['\n', foreignTable(modules)] : []),
    ...notes.map((note) => line`${note}\n`),
    `${JSON.stringify(settings, null, 2)}\n`,
  ].join('');
  return {
    data: {
      kind,
      dir,
      ...tensors,
      parameters,
      quantization: settings,
      quantizedWeights,
      bitsPerWeight: bitsPerWeight(modules),
      modules,
      notes,
      model: model ?? null,
      ...(problem && { problem: problem.message }),
    },
    text,
  };
}

/** How many weights are in low bits, and how many bits each takes. */
function lowBitFact({ modules }: Pick<ForeignInspection, 'modules'>): readonly [string, string] {
  const weights = sum(modules.map(({ shape: [n, k] }) => n * k));
  const types = [...new Set(modules.map(({ type }) => type))].join(', ');
  return [
    'quantized',
    `${count(weights)} weights in ${modules.length} modules: ${types}, ${bitsPerWeight(modules)?.toFixed(3) ?? '-'} bits per weight`,
  ];
}

function lowBitData({ modules, notes }: ForeignInspection): Record<string, unknown> {
  const quantizedWeights = sum(modules.map(({ shape: [n, k] }) => n * k));
  return { quantizedWeights, bitsPerWeight: bitsPerWeight(modules), modules, notes };
}

interface TensorSummary {
  readonly tensors: number;
  readonly parameters: number;
  readonly bytes: number;
  readonly shards: readonly { readonly file: string; readonly bytes: number }[];
  readonly dtypes: Readonly<Record<string, { tensors: number; parameters: number; bytes: number }>>;
}

function tensorSummary(weights: Checkpoint): TensorSummary {
  const dtypes: Record<string, { tensors: number; parameters: number; bytes: number }> = {};
  for (const name of weights.names()) {
    const { dtype, shape } = weights.spec(name);
    dtypes[dtype] ??= { tensors: 0, parameters: 0, bytes: 0 };
    const row = dtypes[dtype];
    row.tensors++;
    row.parameters += shape.reduce((a, b) => a * b, 1);
    row.bytes += tensorBytes(weights, name);
  }
  const rows = Object.values(dtypes);
  return {
    tensors: sum(rows.map((row) => row.tensors)),
    parameters: sum(rows.map((row) => row.parameters)),
    bytes: sum(rows.map((row) => row.bytes)),
    shards: weights.files.map((file) => ({ file: path.basename(file.path), bytes: statSync(file.path).size })),
    dtypes,
  };
}

function tensorFacts(dir: string, weights: Checkpoint, found: TensorSummary): (readonly [string, string])[] {
  const dtypes = Object.entries(found.dtypes).map(([dtype, row]) => `${dtype} ${row.tensors} (${bytes(row.bytes)})`);
  return [
    ['directory', dir],
    ['parameters', `${found.parameters.toLocaleString('en')} (${count(found.parameters)})`],
    ['tensors', `${found.tensors}: ${dtypes.join(', ')}`],
    ['shards', `${weights.files.length}, ${bytes(sum(found.shards.map((shard) => shard.bytes)))}`],
  ];
}

interface ModelSummary {
  readonly architecture: string;
  readonly blocks: number;
  readonly hidden: number;
  readonly vocab: number;
  readonly tiedHead: boolean;
  /** Linears that quantize takes by default. */
  readonly linears: number;
  readonly linearWeights: number;
  readonly experts: number;
  readonly unused: readonly string[];
  /** Input sizes K, each with how many linears have it: what group sizes must divide. */
  readonly inputSizes: Readonly<Record<string, number>>;
}

/** The graph's summary, or why there is none: an unknown architecture is a fact about a directory, not a failure. */
function graphOf(dir: string): { model?: ModelSummary; parameters: number; problem?: LpqError } {
  const source = SourceCheckpoint.open(dir);
  // Of what is published in low bits: the floats that it stands for.
  const parameters = sum([...source.names()].map((name) => source.shape(name).reduce((a, b) => a * b, 1)));
  try {
    const graph = openModel(source);
    return { model: modelSummary(graph, unusedTensors(source, graph)), parameters };
  } catch (error) {
    if (error instanceof LpqError && error.code === 'LPQ_ARCH_UNKNOWN') return { parameters, problem: error };
    throw error;
  } finally {
    source.close();
  }
}

export function modelSummary(graph: ModelGraph, unused: readonly string[]): ModelSummary {
  const linears = graph.blocks.flatMap(({ stages }) =>
    stages.flatMap(({ feeds }) => feeds.flatMap((feed) => feed.linears)),
  );
  const inputSizes: Record<string, number> = {};
  for (const { k } of linears) inputSizes[k] = (inputSizes[k] ?? 0) + 1;
  return {
    architecture: graph.architecture,
    blocks: graph.blocks.length,
    hidden: graph.hidden,
    vocab: graph.vocab,
    tiedHead: graph.head.tied,
    linears: linears.length,
    linearWeights: sum(linears.map(({ n, k }) => n * k)),
    experts: new Set(linears.map(({ expert }) => expert).filter((expert) => expert !== undefined)).size,
    unused,
    inputSizes,
  };
}

export function modelFacts(model: ModelSummary): (readonly [string, string])[] {
  const sizes = Object.entries(model.inputSizes).map(([k, times]) => `${k} (${times})`);
  return [
    [
      'architecture',
      `${model.architecture}, ${model.blocks} blocks, hidden ${model.hidden}, vocabulary ${model.vocab}${model.experts > 0 ? `, ${model.experts} experts` : ''}, lm_head ${model.tiedHead ? 'tied to the embedding' : 'of its own'}`,
    ],
    [
      'quantizable',
      `${model.linears} linears, ${count(model.linearWeights)} weights; input features K: ${sizes.join(', ')}`,
    ],
    ...(model.unused.length > 0
      ? [
          [
            'not used',
            `${model.unused.length} tensors: ${model.unused.slice(0, 4).join(', ')}${model.unused.length > 4 ? ', ...' : ''}`,
          ] as const,
        ]
      : []),
  ];
}
