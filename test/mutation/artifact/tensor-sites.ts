import type { Json } from '../model.js';
import { read, write } from './json-sites.js';
import { type Artifact, type Weight, weightsOf } from './open.js';
import { isObject } from './rehash.js';
import type { Kind, Site } from './site.js';

/** Types of as many bits, which a header may claim instead. */
const ALIKE: Readonly<Record<string, readonly string[]>> = {
  BF16: ['F16', 'I16'],
  F16: ['BF16', 'I16'],
  I32: ['F32', 'U32'],
  F32: ['I32'],
  U8: ['I8', 'F8_E4M3'],
  I8: ['U8', 'F8_E4M3'],
  F8_E4M3: ['U8', 'I8', 'F8_E5M2'],
  I64: ['F64'],
};
/** Types of GGUF by number, of blocks of as many bytes. */
const ALIKE_GGUF: Readonly<Record<number, readonly number[]>> = { 1: [30], 30: [1] };

/** What the headers say of tensors, their bytes, and which there are. */
export function* tensorSites(artifact: Artifact): Iterable<Site> {
  const all = weightsOf(artifact);
  const gguf = artifact.gguf !== undefined;
  for (const [i, weight] of all.entries()) {
    yield* headerSites(weight, gguf);
    yield* byteSites(weight, gguf);
    yield* presence(artifact, weight, gguf);
    for (const other of all.slice(i + 1)) {
      if (other.bytes.length !== weight.bytes.length || other.bytes.equals(weight.bytes)) continue;
      yield {
        kind: gguf ? 'gguf tensors' : 'tensors',
        what: `the bytes of ${weight.name} and ${other.name} exchanged`,
        apply(copy) {
          const [a, b] = [find(copy, weight.name), find(copy, other.name)];
          [a.bytes, b.bytes] = [b.bytes, a.bytes];
        },
      };
    }
  }
  for (const shard of artifact.shards) {
    const metadata = (what: string, set: Record<string, string>): Site => ({
      kind: 'header',
      what: `${shard.file}: __metadata__: ${what}`,
      apply: (copy) => (copy.shards.find(({ file }) => file === shard.file)!.metadata = set),
    });
    yield metadata('format: pt → tf', { format: 'tf' });
    yield metadata('a key added', { format: 'pt', quantization: 'none' });
  }
}

function* headerSites({ name, dtype, shape, bytes }: Weight, gguf: boolean): Iterable<Site> {
  const site = (what: string, apply: (weight: Weight) => void): Site => ({
    kind: gguf ? 'gguf tensors' : 'header',
    what: `${name}: ${what}`,
    apply: (copy) => apply(find(copy, name)),
  });
  const alike = typeof dtype === 'number' ? ALIKE_GGUF[dtype] : ALIKE[dtype];
  for (const other of alike ?? [])
    yield site(`dtype ${dtype} → ${other}`, (weight) => {
      weight.dtype = other;
    });
  if (/\[\d+\]$/.test(name)) return; // a stack's slices share one entry
  const shapes: (readonly number[])[] = [];
  const [rows, columns] = shape as [number, number | undefined];
  if (columns !== undefined) {
    if (rows !== columns) shapes.push([columns, rows]);
    if (rows % 2 === 0) shapes.push([rows / 2, columns * 2]);
    if (columns % 2 === 0 && typeof dtype === 'string') shapes.push([rows * 2, columns / 2]);
    if (typeof dtype === 'string') shapes.push([rows * columns], [1, rows, columns]);
  } else if (rows > 1) shapes.push([1, rows], ...(rows % 2 === 0 ? [[2, rows / 2]] : []));
  for (const other of shapes)
    yield site(`shape [${shape}] → [${other}]`, (weight) => {
      weight.shape = other;
    });
  if (dtype === 'BF16' || dtype === 'F16')
    yield site(`said to be U8 [${[...shape.slice(0, -1), (shape.at(-1) as number) * 2]}]`, (weight) => {
      weight.dtype = 'U8';
      weight.shape = [...shape.slice(0, -1), (shape.at(-1) as number) * 2];
    });
  if (rows > 1 && typeof dtype === 'string')
    yield site('its last row cut off', (weight) => {
      weight.shape = [rows - 1, ...shape.slice(1)];
      weight.bytes = bytes.subarray(0, (bytes.length / rows) * (rows - 1));
    });
}

function* byteSites({ name, shape, bytes }: Weight, gguf: boolean): Iterable<Site> {
  const kind: Kind = gguf ? 'gguf tensors' : 'tensor bytes';
  const site = (what: string, change: (own: Buffer) => void): Site => ({
    kind,
    what: `${name}: ${what}`,
    apply(copy) {
      const weight = find(copy, name);
      const own = Buffer.from(weight.bytes);
      change(own);
      weight.bytes = own;
    },
  });
  for (const part of [0.1, 0.7]) {
    const at = Math.floor(bytes.length * part);
    yield site(`bit ${8 * at + 3} turned`, (own) => {
      own[at]! ^= 8;
    });
  }
  const rows = shape.length > 1 ? (shape[0] as number) : 1;
  const width = bytes.length / rows;
  const row = (r: number) => bytes.subarray(r * width, (r + 1) * width);
  if (rows < 2 || !Number.isInteger(width)) return;
  for (const [a, b] of [
    [0, 1],
    [Math.floor(rows / 3), rows - 1],
  ] as const) {
    if (a === b || row(a).equals(row(b))) continue;
    yield site(`rows ${a} and ${b} exchanged`, (own) => {
      own.set(row(b), a * width);
      own.set(row(a), b * width);
    });
  }
  const few = Math.max(1, Math.floor(rows / 128));
  for (const from of [0, rows - few])
    if (bytes.subarray(from * width, (from + few) * width).some((byte) => byte !== 0))
      yield site(`rows ${from} to ${from + few - 1} of ${rows} zeroed`, (own) => {
        own.fill(0, from * width, (from + few) * width);
      });
  yield site('rows moved down by one', (own) => {
    own.set(bytes.subarray(0, (rows - 1) * width), width);
    own.set(row(rows - 1), 0);
  });
}

/** Removed, renamed, doubled: lpq.json says so too. */
function* presence(artifact: Artifact, { name }: Weight, gguf: boolean): Iterable<Site> {
  const kind: Kind = gguf ? 'gguf tensors' : 'tensors';
  const record = owner(artifact.manifest, name);
  if (!record || /\[\d+\]$/.test(name)) return;
  yield {
    kind,
    what: `${name} removed`,
    rehash: 'all',
    apply(copy) {
      for (const list of lists(copy)) {
        const at = list.findIndex((weight) => weight.name === name);
        if (at >= 0) list.splice(at, 1);
      }
      delete owner(copy.manifest, name)![name];
      reindex(copy);
    },
  };
  for (const renamed of [name.replace(/(weight|B|packed|qweight)$/, '$1_x'), `model.${name}`])
    if (renamed !== name)
      yield {
        kind,
        what: `${name} renamed ${renamed}`,
        rehash: 'all',
        apply(copy) {
          const own = owner(copy.manifest, name)!;
          own[renamed] = own[name];
          delete own[name];
          find(copy, name).name = renamed;
          reindex(copy);
        },
      };
  for (const added of [`${name}_scale`, name.replace(/[^.]+$/, 'bias')])
    if (!weightsOf(artifact).some((weight) => weight.name === added))
      yield {
        kind,
        what: `${added} added, of the bytes of ${name}`,
        rehash: 'all',
        apply(copy) {
          owner(copy.manifest, name)![added] = '0'.repeat(64);
          for (const list of lists(copy)) {
            const found = list.find((weight) => weight.name === name);
            if (found) list.push({ ...found, name: added });
          }
          reindex(copy);
        },
      };
}

/** The record of lpq.json that lists a tensor. */
function owner({ modules, carried }: Json, name: string): Json | undefined {
  const records = [carried, ...Object.values(modules as Json).map((module) => (module as Json).tensors)];
  return records.find((record): record is Json => isObject(record) && Object.hasOwn(record, name));
}

function lists({ shards, gguf }: Artifact): Weight[][] {
  return [...shards.map(({ tensors }) => tensors), ...(gguf ? [gguf.tensors] : [])];
}

function find(artifact: Artifact, name: string): Weight {
  return weightsOf(artifact).find((weight) => weight.name === name) as Weight;
}

const INDEX = 'model.safetensors.index.json';

/** The index says what the shards hold. */
export function reindex(copy: Artifact): void {
  if (!copy.files.has(INDEX)) return;
  const index = read(copy, INDEX) as Json;
  const pairs = copy.shards.flatMap(({ file, tensors }) => tensors.map(({ name }) => [name, file] as const));
  const total = weightsOf(copy).reduce((sum, { bytes }) => sum + bytes.length, 0);
  write(copy, INDEX, { ...index, metadata: { total_size: total }, weight_map: Object.fromEntries(pairs) });
}
