import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { listFiles } from '../../../formats/directory/output-directory.js';
import { ByteSink, type GgufValue, writeEntry } from '../../../formats/gguf/metadata.js';
import { GgufFile } from '../../../formats/gguf/read.js';
import type { SafetensorsDtype } from '../../../formats/safetensors/dtypes.js';
import { encodeHeader } from '../../../formats/safetensors/header.js';
import { SafetensorsFile } from '../../../formats/safetensors/read.js';
import type { Json } from '../model.js';

/** A tensor in memory, of a shard or of model.gguf (there a slice of experts each, NAME[i]). */
export interface Weight {
  name: string;
  /** Of safetensors; of GGUF the number of the type. */
  dtype: string | number;
  /** Row-major, [rows, columns] or [elements]. */
  shape: readonly number[];
  bytes: Buffer;
}

export interface Shard {
  readonly file: string;
  metadata: Record<string, string>;
  tensors: Weight[];
}

export interface Gguf {
  metadata: [string, GgufValue][];
  tensors: Weight[];
  /** Behind the last tensor. */
  tail: Buffer;
}

/** A packed directory in memory, to be changed and written again: what an attacker has, with lpq's own writers. */
export interface Artifact {
  /** The files that are no weights, with lpq.json as `manifest` besides. */
  files: Map<string, Buffer>;
  manifest: Json;
  shards: Shard[];
  gguf?: Gguf;
}

export const GGUF_FILE = 'model.gguf';
const ALIGNMENT = 32;

/** Reads all of a packed directory. */
export async function openArtifact(dir: string): Promise<Artifact> {
  const files = new Map<string, Buffer>();
  const shards: Shard[] = [];
  let gguf: Gguf | undefined;
  for (const name of (await listFiles(dir)).toSorted()) {
    const place = path.join(dir, name);
    if (name.endsWith('.safetensors')) shards.push(openShard(place, name));
    else if (name === GGUF_FILE) gguf = openGguf(place);
    else if (name !== 'lpq.json') files.set(name, readFileSync(place));
  }
  const manifest = JSON.parse(readFileSync(path.join(dir, 'lpq.json'), 'utf8')) as Json;
  return { files, manifest, shards, ...(gguf && { gguf }) };
}

function openShard(place: string, file: string): Shard {
  const bytes = readFileSync(place);
  const open = SafetensorsFile.open(place);
  const { tensors, metadata, dataStart } = open.header;
  open.close();
  return {
    file,
    metadata: { ...metadata },
    tensors: tensors.map(({ name, dtype, shape, begin, end }) => ({
      ...{ name, dtype, shape },
      bytes: bytes.subarray(dataStart + begin, dataStart + end),
    })),
  };
}

function openGguf(place: string): Gguf {
  const bytes = readFileSync(place);
  const open = GgufFile.open(place);
  const tensors = open.names().map((name): Weight => {
    const { type, rows, columns, rank, position, bytes: size } = open.matrix(name);
    return {
      name,
      dtype: type.id,
      shape: rank === 1 ? [columns] : [rows, columns],
      bytes: bytes.subarray(position, position + size),
    };
  });
  const metadata = [...open.metadata];
  open.close();
  return { metadata, tensors, tail: Buffer.alloc(0) };
}

/** A copy that may be changed: bytes are shared until a change puts others in their place. */
export function copyOf({ files, manifest, shards, gguf }: Artifact): Artifact {
  const own = (tensors: readonly Weight[]) => tensors.map((tensor) => ({ ...tensor }));
  return {
    files: new Map(files),
    manifest: structuredClone(manifest),
    shards: shards.map((shard) => ({ ...shard, metadata: { ...shard.metadata }, tensors: own(shard.tensors) })),
    ...(gguf && {
      gguf: { metadata: structuredClone(gguf.metadata), tensors: own(gguf.tensors), tail: gguf.tail },
    }),
  };
}

/** Every tensor of an artifact. */
export function weightsOf({ shards, gguf }: Artifact): Weight[] {
  return [...shards.flatMap(({ tensors }) => tensors), ...(gguf?.tensors ?? [])];
}

/** Keeps a directory on the disk at what write() was given last, and writes what differs alone. */
export class Written {
  private readonly there = new Map<string, Buffer>();

  constructor(readonly dir: string) {
    mkdirSync(dir, { recursive: true });
  }

  /** `manifest` is the text of lpq.json. */
  write(artifact: Artifact, manifest: string): void {
    const files = diskFiles(artifact, manifest);
    for (const name of [...this.there.keys()])
      if (!files.has(name)) {
        rmSync(path.join(this.dir, name));
        this.there.delete(name);
      }
    for (const [name, bytes] of files) {
      if (this.there.get(name)?.equals(bytes)) continue;
      const place = path.join(this.dir, name);
      mkdirSync(path.dirname(place), { recursive: true });
      // Another file: what was there may be mapped yet.
      rmSync(place, { force: true });
      writeFileSync(place, bytes);
      this.there.set(name, bytes);
    }
  }
}

/** Every file of an artifact, as it is on the disk. */
export function diskFiles(artifact: Artifact, manifest: string): Map<string, Buffer> {
  const files = new Map(artifact.files);
  for (const shard of artifact.shards) files.set(shard.file, shardBytes(shard));
  if (artifact.gguf) files.set(GGUF_FILE, ggufBytes(artifact.gguf));
  return files.set('lpq.json', Buffer.from(manifest));
}

export function sameFiles(a: ReadonlyMap<string, Buffer>, b: ReadonlyMap<string, Buffer>): boolean {
  return a.size === b.size && [...a].every(([name, bytes]) => b.get(name)?.equals(bytes));
}

export function shardBytes({ tensors, metadata }: Shard): Buffer {
  let end = 0;
  const entries = tensors.map(({ name, dtype, shape, bytes }) => {
    const begin = end;
    end += bytes.length;
    return { name, dtype: dtype as SafetensorsDtype, shape, begin, end };
  });
  return Buffer.concat([encodeHeader(entries, metadata), ...tensors.map(({ bytes }) => bytes)]);
}

/** model.gguf, whatever its tensors claim to be: slices of experts that follow one another make one tensor. */
export function ggufBytes({ metadata, tensors, tail }: Gguf): Buffer {
  const stacks: { name: string; slices: Weight[] }[] = [];
  for (const tensor of tensors) {
    const stack = /^(.*)\[\d+\]$/.exec(tensor.name)?.[1];
    const last = stacks.at(-1);
    if (stack !== undefined && last?.name === stack) last.slices.push(tensor);
    else stacks.push({ name: stack ?? tensor.name, slices: [tensor] });
  }
  const sink = new ByteSink();
  sink.bytes(new TextEncoder().encode('GGUF'));
  sink.u32(3);
  sink.u64(stacks.length);
  sink.u64(metadata.length);
  for (const [key, value] of metadata) writeEntry(sink, key, value);
  const data: Buffer[] = [];
  let end = 0;
  for (const { name, slices } of stacks) {
    const [first] = slices as [Weight];
    const stacked = first.name !== name;
    const dims = [...first.shape.toReversed(), ...(stacked ? [slices.length] : [])];
    sink.string(name);
    sink.u32(dims.length);
    for (const size of dims) sink.u64(size);
    sink.u32(first.dtype as number);
    sink.u64(end);
    const bytes = Buffer.concat(slices.map((slice) => slice.bytes));
    const over = (ALIGNMENT - (bytes.length % ALIGNMENT)) % ALIGNMENT;
    data.push(bytes, Buffer.alloc(over));
    end += bytes.length + over;
  }
  sink.pad(ALIGNMENT);
  return Buffer.concat([sink.joined(), ...data, tail]);
}
