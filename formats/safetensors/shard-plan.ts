import { LpqError } from '../../src/core/error.js';
import { SAFETENSORS_DTYPES, tensorBytes } from './dtypes.js';
import {
  compareForWriting,
  compareUtf8,
  encodeHeader,
  MAX_HEADER_BYTES,
  type TensorEntry,
  type TensorSpec,
} from './header.js';

/** One file to be written: its header is known before any tensor is. */
export interface PlannedShard {
  readonly file: string;
  readonly header: Uint8Array;
  readonly tensors: readonly TensorEntry[];
  /** 8 + header + data. */
  readonly fileBytes: number;
}

export interface ShardPlan {
  readonly shards: readonly PlannedShard[];
  /** Bytes of all tensors. */
  readonly totalSize: number;
  /** The index, or undefined when there is one file only. */
  readonly index: { readonly file: string; readonly text: string } | undefined;
}

/** 5 GB of tensors a shard, as Hugging Face's writers do. */
export const SHARD_BYTES = 5e9;

/**
 * Lays tensors out in shards: a new one whenever the next tensor, in the order given, would pass the limit (a tensor
 * above the limit has a shard of its own), or is of another part (`partOf`); inside a shard by dtype rank, then name. The same specs give
 * the same plan.
 * Throws LPQ_INTERNAL for names given twice or reserved, and for shapes that have no size.
 */
export function planShards(
  specs: readonly TensorSpec[],
  options: {
    maxShardBytes?: number;
    metadata?: Readonly<Record<string, string>>;
    stem?: string;
    partOf?: (tensor: string) => number | undefined;
  } = {},
): ShardPlan {
  const { maxShardBytes = SHARD_BYTES, metadata = { format: 'pt' }, stem = 'model', partOf = () => 0 } = options;
  const groups: { spec: TensorSpec; bytes: number }[][] = [[]];
  const seen = new Set<string>();
  let totalSize = 0;
  let filled = 0;
  for (const spec of specs) {
    const bytes = sizeOf(spec, seen);
    const before = groups.at(-1)?.at(-1)?.spec.name;
    const other = before !== undefined && partOf(before) !== partOf(spec.name);
    if (other || (filled > 0 && filled + bytes > maxShardBytes)) {
      groups.push([]);
      filled = 0;
    }
    groups.at(-1)?.push({ spec, bytes });
    filled += bytes;
    totalSize += bytes;
  }
  const shards = groups.map((group, i) => planShard(shardName(stem, i, groups.length), group, metadata));
  return { shards, totalSize, index: groups.length > 1 ? indexOf(stem, shards, totalSize) : undefined };
}

function sizeOf(spec: TensorSpec, seen: Set<string>): number {
  const { name, dtype, shape } = spec;
  const bad = (why: string): never => {
    throw new LpqError('LPQ_INTERNAL', `tensor '${name}' cannot be written: ${why}`);
  };
  if (name === '__metadata__') bad('its name is reserved by the format');
  if (/\p{Surrogate}/u.test(name)) bad('its name is not valid text');
  if (seen.has(name)) bad('its name was declared twice');
  seen.add(name);
  if (!SAFETENSORS_DTYPES.has(dtype)) bad(`the format has no dtype ${dtype}`);
  if (shape.some((dim) => !Number.isSafeInteger(dim) || dim < 0)) bad(`[${shape}] is no shape`);
  const bytes = tensorBytes(dtype, shape);
  return typeof bytes === 'string' ? bad(bytes) : bytes;
}

function planShard(
  file: string,
  group: readonly { spec: TensorSpec; bytes: number }[],
  metadata: Readonly<Record<string, string>>,
): PlannedShard {
  let at = 0;
  const tensors: TensorEntry[] = [];
  for (const { spec, bytes } of [...group].sort((a, b) => compareForWriting(a.spec, b.spec))) {
    tensors.push({ name: spec.name, dtype: spec.dtype, shape: spec.shape, begin: at, end: at + bytes });
    at += bytes;
  }
  const header = encodeHeader(tensors, metadata);
  if (header.length - 8 > MAX_HEADER_BYTES)
    throw new LpqError('LPQ_INTERNAL', `${file} would need a header of ${header.length - 8} bytes, above the limit`);
  return { file, header, tensors, fileBytes: header.length + at };
}

function shardName(stem: string, i: number, count: number): string {
  if (count === 1) return `${stem}.safetensors`;
  const five = (n: number) => String(n).padStart(5, '0');
  return `${stem}-${five(i + 1)}-of-${five(count)}.safetensors`;
}

function indexOf(stem: string, shards: readonly PlannedShard[], totalSize: number): { file: string; text: string } {
  const rows = shards.flatMap(({ file, tensors }) => tensors.map(({ name }) => [name, file] as const));
  rows.sort(([a], [b]) => compareUtf8(a, b));
  // By hand, for the reason given in encodeHeader.
  const map = rows.map(([name, file]) => `    ${JSON.stringify(name)}: ${JSON.stringify(file)}`).join(',\n');
  const text = `{\n  "metadata": {\n    "total_size": ${totalSize}\n  },\n  "weight_map": {\n${map}\n  }\n}\n`;
  return { file: `${stem}.safetensors.index.json`, text };
}
