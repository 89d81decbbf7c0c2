import type { RemoteShard } from '../../formats/safetensors/stream.js';

/** Which shards each block reads, and so how many bytes a run has on the disk at once. */
export class Schedule {
  /** Of each block, in the order of the model. */
  private readonly blocks: readonly (readonly RemoteShard[])[];
  private readonly numbers: ReadonlyMap<string, number>;
  /** Most bytes of the shards of two neighbouring blocks; no less than those of the two largest shards. */
  readonly mostBytes: number;

  /** `blocks`: names of each block's tensors, of the files or of views over them. */
  constructor(shards: readonly RemoteShard[], blocks: readonly (readonly string[])[]) {
    const prefixes = blocks.map(commonPrefix);
    this.numbers = new Map(prefixes.map((prefix, number) => [prefix, number]));
    const found = prefixes.map(() => new Set<RemoteShard>());
    for (const shard of shards)
      for (const { name } of shard.header.tensors) {
        const block = this.blockOf(name);
        if (block !== undefined) found[block]?.add(shard);
      }
    this.blocks = found.map((each) => [...each]);
    const largest = shards.map(({ bytes }) => bytes).sort((a, b) => b - a);
    const pairs = this.blocks.map((_, block) => this.around(block).reduce((sum, { bytes }) => sum + bytes, 0));
    this.mostBytes = pairs.reduce((most, bytes) => Math.max(most, bytes), (largest[0] ?? 0) + (largest[1] ?? 0));
  }

  /** The block of a tensor; undefined of what stands outside of blocks. */
  blockOf(name: string): number | undefined {
    for (let end = name.lastIndexOf('.'); end > 0; end = name.lastIndexOf('.', end - 1)) {
      const number = this.numbers.get(name.slice(0, end + 1));
      if (number !== undefined) return number;
    }
    return undefined;
  }

  /** Shards of a block, then those of the next. */
  around(block: number): readonly RemoteShard[] {
    return [...new Set([...(this.blocks[block] ?? []), ...(this.blocks[block + 1] ?? [])])];
  }
}

/** 'model.layers.7.' of the names of a block. */
function commonPrefix(names: readonly string[]): string {
  const [first = '', ...rest] = names;
  let length = first.length;
  for (const name of rest) {
    let same = 0;
    while (same < length && name[same] === first[same]) same++;
    length = same;
  }
  return first.slice(0, first.lastIndexOf('.', length - 1) + 1);
}
