import { existsSync } from 'node:fs';
import path from 'node:path';
import { Artifact } from '../../../formats/artifact/read.js';
import { artifactSchema } from '../../../formats/artifact/schema.js';
import { CanonicalCheckpoint, readManifest } from '../../../formats/canonical/read.js';
import type { Provenance } from '../../../formats/canonical/schema.js';
import { moduleTensors } from '../../../formats/canonical/tensors.js';
import { GgufFile } from '../../../formats/gguf/read.js';
import { printGranularity } from '../../core/granularity.js';
import { facts, table } from '../terminal/table.js';
import { line } from '../terminal/terminal.js';
import { bytes, count, significant } from '../terminal/units.js';
import { type Inspection, sum, tensorBytes } from './inspection.js';

/** What `lpq quantize` wrote. */
export function inspectQuantized(dir: string): Inspection {
  const checkpoint = CanonicalCheckpoint.open(dir);
  try {
    const { manifest, weights } = checkpoint;
    const modules = Object.entries(manifest.modules).map(([name, module]) => ({
      name,
      type: module.type,
      sparsity: module.sparsity,
      shape: module.shape,
      group: printGranularity(module.granularity),
      scales: module.scales.twoLevel ? `${module.scales.dtype} two-level` : module.scales.dtype,
      zeros: module.zeros.kind,
      bytes: sum([...moduleTensors(name, module).values()].map((spec) => tensorBytes(weights, spec.name))),
      error: module.quality?.relativeError ?? null,
      damp: module.quality?.damp ?? null,
      note: module.quality?.note ?? null,
    }));
    const carried = sum(Object.keys(manifest.carried).map((name) => tensorBytes(weights, name)));
    const totals = sizes(modules, carried);
    const text = [
      facts([
        ['kind', 'quantized checkpoint (lpq-canonical)'],
        ...provenanceFacts(manifest.provenance),
        ...sizeFacts(totals),
      ]),
      '\n',
      table(
        ['module', 'type', 'shape', 'group', 'scales', 'zeros', 'bits/weight', 'error', 'damp'],
        modules.map((m) => [
          m.name,
          m.sparsity === 'none' ? m.type : `${m.type} ${m.sparsity}`,
          m.shape.join(' x '),
          m.group,
          m.scales,
          m.zeros,
          perWeight(m).toFixed(3),
          significant(m.error),
          significant(m.damp),
        ]),
      ),
      ...modules.filter(({ note }) => note !== null).map(({ name, note }) => line`${name}: ${note}\n`),
    ].join('');
    return {
      data: { kind: 'lpq-canonical', dir, ...totals, provenance: manifest.provenance, modules: withBits(modules) },
      text,
    };
  } finally {
    checkpoint.close();
  }
}

/** What `lpq pack` wrote. */
export function inspectPacked(dir: string): Inspection {
  const artifact = openPacked(dir);
  try {
    const { manifest, sizeOf } = artifact;
    const modules = Object.entries(manifest.modules).map(([name, module]) => ({
      name,
      type: module.type,
      layout: module.layout,
      shape: module.shape,
      padded: module.padded,
      group: printGranularity(module.granularity),
      bytes: sum(Object.keys(module.tensors).map(sizeOf)),
      notes: module.notes,
    }));
    const carried = sum(Object.keys(manifest.carried).map(sizeOf));
    const totals = sizes(modules, carried);
    const text = [
      facts([
        ['kind', 'packed artifact (lpq-artifact)'],
        ['target', manifest.target],
        ...provenanceFacts(manifest.provenance),
        ...sizeFacts(totals),
      ]),
      '\n',
      table(
        ['module', 'type', 'layout', 'shape', 'padded', 'group', 'bits/weight'],
        modules.map((m) => [
          m.name,
          m.type,
          m.layout,
          m.shape.join(' x '),
          m.padded.some((dim, i) => dim !== m.shape[i]) ? m.padded.join(' x ') : '-',
          m.group,
          perWeight(m).toFixed(3),
        ]),
      ),
      ...modules.flatMap(({ name, notes }) => notes.map((note) => line`${name}: ${note}\n`)),
    ].join('');
    const { target, provenance } = manifest;
    return { data: { kind: 'lpq-artifact', dir, target, ...totals, provenance, modules: withBits(modules) }, text };
  } finally {
    artifact.close();
  }
}

/** A packed directory, whether its tensors lie in safetensors files or in model.gguf. */
function openPacked(dir: string) {
  const file = path.join(dir, 'model.gguf');
  if (existsSync(file)) {
    const manifest = readManifest(dir, artifactSchema, 'LPQ_ARTIFACT');
    const gguf = GgufFile.open(file);
    return { manifest, sizeOf: (name: string) => gguf.matrix(name).bytes, close: () => gguf.close() };
  }
  const artifact = Artifact.open(dir);
  const { manifest, weights } = artifact;
  return { manifest, sizeOf: (name: string) => tensorBytes(weights, name), close: () => artifact.close() };
}

interface Sized {
  readonly shape: readonly [number, number];
  readonly bytes: number;
}

interface Sizes {
  readonly quantizedWeights: number;
  readonly quantizedBytes: number;
  readonly carriedBytes: number;
  /** Of the quantized modules: all their bytes, scales and zeros too. */
  readonly bitsPerWeight: number | null;
}

function sizes(modules: readonly Sized[], carriedBytes: number): Sizes {
  const quantizedWeights = sum(modules.map(({ shape: [n, k] }) => n * k));
  const quantizedBytes = sum(modules.map((module) => module.bytes));
  return {
    quantizedWeights,
    quantizedBytes,
    carriedBytes,
    bitsPerWeight: quantizedWeights > 0 ? (8 * quantizedBytes) / quantizedWeights : null,
  };
}

function sizeFacts(totals: Sizes): (readonly [string, string])[] {
  return [
    [
      'quantized',
      `${count(totals.quantizedWeights)} weights in ${bytes(totals.quantizedBytes)}: ${totals.bitsPerWeight?.toFixed(3) ?? '-'} bits per weight`,
    ],
    ['carried', bytes(totals.carriedBytes)],
  ];
}

function provenanceFacts({ lpq, source, method, options, calibration }: Provenance): (readonly [string, string])[] {
  const settings = Object.entries(options).map(
    ([name, value]) => `${name} ${typeof value === 'object' ? JSON.stringify(value) : value}`,
  );
  return [
    [
      'source',
      `${source.name}${source.revision ? ` at ${source.revision}` : ''}, fingerprint ${source.fingerprint.slice(0, 16)}`,
    ],
    ['method', `${method}, lpq ${lpq}`],
    ['options', settings.join(', ')],
    ...(calibration
      ? [
          [
            'calibration',
            `${calibration.name}: ${calibration.sequences} sequences, ${calibration.tokens} tokens, seed ${calibration.seed}`,
          ] as const,
        ]
      : []),
  ];
}

function perWeight({ shape: [n, k], bytes: size }: Sized): number {
  return (8 * size) / (n * k);
}

function withBits<T extends Sized>(modules: readonly T[]): (T & { bitsPerWeight: number })[] {
  return modules.map((module) => ({ ...module, bitsPerWeight: perWeight(module) }));
}
