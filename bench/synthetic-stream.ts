import { mkdir, rm } from 'node:fs/promises';
import path from 'node:path';
import { SourceCheckpoint } from '../formats/canonical/source.js';
import { writeError } from '../formats/directory/write-error.js';
import { piecesOf, samplePlaces } from '../formats/safetensors/fingerprint.js';
import { type Header, parseHeader } from '../formats/safetensors/header.js';
import type { PlannedShard } from '../formats/safetensors/shard-plan.js';
import { endStream, type RemoteShard, setStream } from '../formats/safetensors/stream.js';
import type { NativeRuntime } from '../native/binding.js';
import { blockTensors } from '../src/model/graph.js';
import { Place } from '../src/stream/places.js';
import { Supply } from '../src/stream/supply.js';
import { requireSpace } from './directory.js';
import { type Draw, PieceMemory, unitOf } from './drawn.js';
import type { ModelShape } from './shapes.js';
import { type PlannedSynthetic, planSynthetic, type SyntheticOptions, writeFacts, writeShard } from './synthetic.js';

/** A synthetic checkpoint whose shards are made when they are read. */
export interface SyntheticStream {
  readonly dir: string;
  /** Of all tensors. */
  readonly bytes: number;
  readonly parameters: number;
  /** What was made so far: shards and their bytes, seconds that each took, added up; the most bytes that were on the disk at once. */
  made(): { readonly shards: number; readonly bytes: number; readonly seconds: number; readonly peak: number };
  /** The shards go; the directory stays. */
  close(): Promise<void>;
}

/**
 * The checkpoint of makeSynthetic(), to the byte, in a directory that never holds all of it: shards of a block are made ahead of it, and
 * removed after it, as those of `lpq quantize --stream` are fetched. `rt` draws them, on the CPU. Throws LPQ_OUTPUT_WRITE, LPQ_DISK_FULL,
 * LPQ_USAGE, LPQ_CONFIG.
 */
export async function streamSynthetic(
  rt: NativeRuntime,
  dir: string,
  shape: ModelShape,
  options: Omit<SyntheticOptions, 'onBytes'>,
): Promise<SyntheticStream> {
  const planned = planSynthetic(shape, options);
  const { plan, draws } = planned;
  const folder = `${dir.replace(/\/+$/, '')}.shards`;
  try {
    for (const each of [dir, folder]) await mkdir(each, { recursive: true });
    await writeFacts(dir, planned.config, plan);
  } catch (cause) {
    throw writeError(dir, cause);
  }
  const shards = await knownShards(rt, planned);
  let seconds = 0;
  const places = shards.map((shard) => new Place(shard, fileOf(shard), path.join(folder, shard.name), true));
  const byName = new Map(plan.shards.map((shard) => [shard.file, shard]));
  const supply = new Supply(places, async ({ shard, path: file }, onBytes) => {
    const started = performance.now();
    await writeShard(rt, file, byName.get(shard.name) as PlannedShard, draws, onBytes);
    seconds += (performance.now() - started) / 1000;
  });
  const close = async () => {
    endStream(supply);
    await supply.close();
    await rm(folder, { recursive: true, force: true });
  };
  setStream(dir, supply);
  try {
    supply.begin(blocksOf(dir));
    await requireSpace(folder, supply.mostBytes);
  } catch (error) {
    await close();
    throw error;
  }
  return {
    dir,
    bytes: plan.totalSize,
    parameters: planned.parameters,
    made: () => ({ shards: supply.moved.files, bytes: supply.moved.bytes, seconds, peak: supply.moved.peak }),
    close,
  };
}

/** The part of a listing that places look at. */
function fileOf({ name, bytes }: RemoteShard): Place['file'] {
  return { path: name, size: bytes, etag: name, digest: 'sha256', oid: name };
}

/** Headers, and the samples that tell checkpoints apart. */
async function knownShards(rt: NativeRuntime, { plan, draws }: PlannedSynthetic): Promise<RemoteShard[]> {
  const headed = plan.shards.map((shard) => ({
    shard,
    header: parseHeader(shard.file, shard.header.subarray(8), shard.fileBytes),
  }));
  const pieces = piecesOf(headed);
  const known: RemoteShard[] = [];
  for (const { shard, header } of headed) {
    const { file: name, fileBytes: bytes, header: head } = shard;
    known.push({ name, bytes, header, head, samples: await samplesOf(rt, header, pieces, draws) });
  }
  return known;
}

/** Bytes of the pieces of a shard, drawn with the rows around them. */
async function samplesOf(
  rt: NativeRuntime,
  header: Header,
  pieces: number,
  draws: PlannedSynthetic['draws'],
): Promise<Uint8Array> {
  const tensors = new Map(header.tensors.map((tensor) => [tensor.name, tensor]));
  const samples: Uint8Array[] = [];
  for (const { name, at, length } of samplePlaces(header, pieces)) {
    const tensor = tensors.get(name) as Header['tensors'][number];
    const draw = draws.get(name) as Draw;
    const from = at - header.dataStart - tensor.begin;
    const unit = unitOf(tensor, draw);
    const first = Math.floor(from / unit) * unit;
    const end = Math.min(Math.ceil((from + length) / unit) * unit, tensor.end - tensor.begin);
    const memory = new PieceMemory(end - first);
    const bytes = await memory.draw(rt, tensor, draw, first, end - first);
    samples.push(bytes.slice(from - first, from - first + length));
    memory.dispose();
  }
  return Buffer.concat(samples);
}

/** Names of the tensors of each block. */
function blocksOf(dir: string): string[][] {
  const source = SourceCheckpoint.open(dir);
  try {
    return blockTensors(source);
  } finally {
    source.close();
  }
}
