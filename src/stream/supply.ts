import { setImmediate } from 'node:timers/promises';
import { writeError } from '../../formats/directory/write-error.js';
import { piecesOf } from '../../formats/safetensors/fingerprint.js';
import type { RemoteShard, ShardStream } from '../../formats/safetensors/stream.js';
import { tell } from '../core/activity.js';
import { LpqError } from '../core/error.js';
import type { Place } from './places.js';
import { Schedule } from './schedule.js';

/** Shards that come at once. */
const AT_ONCE = 4;

/** Brings one file to its place. Throws LPQ_HUB_*, LPQ_ABORTED, and what the system says of the disk. */
export type Bring = (place: Place, onBytes: (count: number) => void) => Promise<void>;

/**
 * Brings shards when they are needed, and those of the next block meanwhile; drops those of blocks before. What is on the disk at any time,
 * parts of files counted, is at most `mostBytes`: who wants to bring another waits until one may go. One that is needed again comes again.
 */
export class Supply implements ShardStream {
  private readonly places: ReadonlyMap<RemoteShard, Place>;
  private readonly listeners = new Set<(shard: RemoteShard) => Promise<void>>();
  private readonly pieces: number;
  private schedule: Schedule;
  private block = -1;
  private clock = 0;
  private flying = 0;
  /** Shards that are being taken from. */
  private handed = 0;
  private closed = false;
  private wakers: (() => void)[] = [];
  /** Bytes and files that came; the most bytes that were on the disk. */
  readonly moved = { bytes: 0, files: 0, peak: 0 };

  constructor(
    places: readonly Place[],
    private readonly bring: Bring,
  ) {
    this.places = new Map(places.map((place) => [place.shard, place]));
    this.pieces = piecesOf(this.shards);
    this.schedule = new Schedule(this.shards, []);
  }

  get shards(): readonly RemoteShard[] {
    return [...this.places.keys()];
  }

  get mostBytes(): number {
    return this.schedule.mostBytes;
  }

  /** The names of each block's tensors; then takes up what an earlier run left, as far as there is room. */
  begin(blocks: readonly (readonly string[])[]): void {
    this.schedule = new Schedule(this.shards, blocks);
    for (const place of this.places.values()) {
      place.takeUp();
      if (place.here) place.check(this.pieces);
      if (this.held > this.mostBytes) place.drop();
    }
    this.moved.peak = this.held;
  }

  has(shard: RemoteShard): boolean {
    return this.of(shard).here;
  }

  read(shard: RemoteShard, into: Uint8Array, position: number): void {
    const place = this.of(shard);
    place.used = ++this.clock;
    place.read(into, position);
  }

  async fill(shard: RemoteShard, into: Uint8Array, position: number): Promise<void> {
    const place = this.of(shard);
    place.used = ++this.clock;
    await place.fill(into, position);
  }

  async need(shard: RemoteShard): Promise<() => void> {
    const place = this.of(shard);
    place.pins++;
    this.wake();
    try {
      if (!place.here) tell(`fetching ${shard.name}`);
      while (!place.here) await this.fetch(place);
      return () => this.unpin(place);
    } catch (error) {
      this.unpin(place);
      throw error;
    }
  }

  reads(name: string): void {
    const block = this.schedule.blockOf(name);
    // Something of the block before may be read while the next is on its way.
    if (block === undefined || block === this.block || block === this.block - 1) return;
    const stay = new Set([...this.schedule.around(block), ...this.schedule.around(block - 1)]);
    this.block = block;
    for (const place of this.places.values())
      if (place.held > 0 && !stay.has(place.shard) && this.free(place)) place.drop();
    this.wake();
    // A failure is that of whoever needs the shard.
    for (const shard of this.schedule.around(block)) if (!this.has(shard)) this.fetch(this.of(shard)).catch(() => {});
  }

  onArrival(take: (shard: RemoteShard) => Promise<void>): () => void {
    this.listeners.add(take);
    for (const place of this.places.values()) if (place.here) this.hand(place, [take]);
    return () => {
      this.listeners.delete(take);
    };
  }

  /** Stops: what is on its way ends with the signal that ended the client. The files stay. */
  async close(): Promise<void> {
    this.closed = true;
    this.wake();
    await Promise.allSettled([...this.places.values()].map(({ fetching }) => fetching));
    for (const place of this.places.values()) place.close();
  }

  private of(shard: RemoteShard): Place {
    return this.places.get(shard) as Place;
  }

  private get held(): number {
    return [...this.places.values()].reduce((sum, { held }) => sum + held, 0);
  }

  private fetch(place: Place): Promise<void> {
    place.fetching ??= this.fetched(place).finally(() => {
      place.fetching = undefined;
      this.wake();
    });
    return place.fetching;
  }

  private async fetched(place: Place): Promise<void> {
    if (!(await this.room(place))) return;
    this.flying++;
    place.flying = true;
    try {
      let came = 0;
      await this.bring(place, (count) => {
        came += count;
        if (place.pins > 0)
          tell(`fetching ${place.shard.name}, ${Math.floor((100 * came) / Math.max(1, place.file.size))} %`);
      });
      place.open();
      place.check(this.pieces);
      place.used = ++this.clock;
      this.moved.files++;
      this.moved.bytes += place.file.size;
      this.hand(place, [...this.listeners]);
    } catch (cause) {
      if (place.here) place.drop();
      throw writeError(place.path, cause);
    } finally {
      this.flying--;
      place.flying = false;
      place.count();
    }
  }

  /** Waits until the file has its place; false where it is not wanted any more. */
  private async room(place: Place): Promise<boolean> {
    for (let stuck = false; ; ) {
      if (this.closed) throw new LpqError('LPQ_ABORTED', 'the run was interrupted');
      const wanted = place.pins > 0;
      if (!wanted && !this.schedule.around(this.block).includes(place.shard)) return false;
      const mayBegin = this.flying < AT_ONCE && (wanted || !this.somebodyWaits());
      const held = this.held - place.held + place.file.size;
      if (mayBegin && held <= this.mostBytes) return this.reserve(place);
      const victim = mayBegin ? this.victim(place, wanted) : undefined;
      if (victim) {
        victim.drop();
        continue;
      }
      // All that is here stays for one tensor of several shards, which is whole with this one: no wait would end.
      const last = wanted && this.flying === 0 && this.handed === 0;
      if (last && stuck) return this.reserve(place);
      stuck = last;
      await (last ? setImmediate() : new Promise<void>((resolve) => this.wakers.push(resolve)));
    }
  }

  /** Whether a shard that is needed now has no room yet: those that are only wanted soon come after it. */
  private somebodyWaits(): boolean {
    return [...this.places.values()].some(({ pins, fetching, flying }) => pins > 0 && fetching && !flying);
  }

  private reserve(place: Place): true {
    place.held = place.file.size;
    this.moved.peak = Math.max(this.moved.peak, this.held);
    return true;
  }

  /** Which file goes: the one that was not read for longest, of this block and the next only if somebody waits. */
  private victim(forPlace: Place, wanted: boolean): Place | undefined {
    const soon = new Set(this.schedule.around(this.block));
    const rank = (place: Place) => (soon.has(place.shard) ? Number.MAX_SAFE_INTEGER / 2 : 0) + place.used;
    return [...this.places.values()]
      .filter((place) => place !== forPlace && place.held > 0 && this.free(place) && (wanted || !soon.has(place.shard)))
      .sort((a, b) => rank(a) - rank(b))[0];
  }

  private free({ pins, flying, own }: Place): boolean {
    return own && pins === 0 && !flying;
  }

  /** The file stays until all have taken of it what they want. */
  private hand(place: Place, takers: readonly ((shard: RemoteShard) => Promise<void>)[]): void {
    if (takers.length === 0) return;
    place.pins++;
    this.handed++;
    void Promise.allSettled(takers.map((take) => take(place.shard))).then(() => {
      this.handed--;
      this.unpin(place);
    });
  }

  private unpin(place: Place): void {
    place.pins--;
    this.wake();
  }

  private wake(): void {
    for (const wake of this.wakers.splice(0)) wake();
  }
}
