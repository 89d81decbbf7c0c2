import type { LatentScheme } from '../../formats/kv/latent.js';
import { type NativeRuntime, type Tensor, uploadTyped } from '../../native/binding.js';
import type { LatentForm } from '../../native/latent-ops.js';
import { ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import { latentForm } from '../model/decoded-latents.js';
import type { KeptLatents } from '../model/program.js';
import type { CacheShape, KeyValueCache } from './cache.js';
import type { Step } from './step.js';

/** Pages of one block: those of a slot lie together. */
interface Layer {
  readonly form: LatentForm;
  readonly pages: Tensor;
}

/** Where the sequences of a step of single tokens lie: pages I32 [B, P], and tokens before the step I32 [blocks, B]. */
interface Places {
  readonly step: Step;
  readonly table: Tensor;
  readonly lengths: Tensor;
}

/**
 * Latents of latent attention (MLA) in 2, 4, 8 or 16 bits, in pages that ops.latentDecode reads (docs/kv-cache.md). The tokens of a
 * prompt read each other as they are and are packed afterwards; every later token is packed first, and reads all as they are packed.
 */
export class LatentCache implements KeyValueCache {
  readonly pieces = false;
  readonly room = 0;
  private readonly layers: (Layer | undefined)[];
  /** Pages of a slot. */
  private readonly each: number;
  private places: Places | undefined;

  constructor(
    private readonly rt: NativeRuntime,
    private readonly scheme: LatentScheme,
    private readonly shape: CacheShape,
  ) {
    this.layers = Array.from({ length: shape.blocks });
    const { form } = latentForm(scheme, { latent: 64, rotary: 16 });
    this.each = Math.max(1, Math.ceil(shape.most / form.pageTokens));
  }

  get form(): string {
    const { bits, group } = this.scheme;
    return bits === 16 ? 'latents of f16' : `latents of ${bits} bits in groups of ${group}`;
  }

  get bytes(): number {
    return this.tensors().reduce((sum, tensor) => sum + tensor.byteLength, 0);
  }

  tensors(): readonly Tensor[] {
    return this.layers.flatMap((layer) => (layer ? [layer.pages] : []));
  }

  begin(): void {}

  attend(block: number): void {
    throw new LpqError('LPQ_USAGE', `block ${block} has keys and values, which a cache of latents does not keep`, {
      hint: 'Leave --kv out.',
    });
  }

  latents(block: number, step: Step, stored: Parameters<typeof latentForm>[1]): KeptLatents {
    const layer = this.layers[block] ?? this.layer(stored);
    this.layers[block] = layer;
    const newer = step.entries.filter(({ past }) => past > 0).length;
    if (newer === 0)
      return {
        prompts: true,
        keep: (c, rotary) => this.pack(layer, step, c, rotary),
        attend: () => {
          throw new LpqError('LPQ_INTERNAL', 'the tokens of a prompt do not read the cache');
        },
      };
    if (newer !== step.tokens)
      throw new LpqError('LPQ_INTERNAL', 'prompts come in separate steps, and later tokens one for each sequence');
    const { rt } = this;
    const { table, lengths } = this.placesOf(step);
    const own = (): Tensor => lengths.view([newer], block * newer);
    return {
      prompts: false,
      keep: (c, rotary) => {
        const before = own();
        ops.latentAppend(rt, c, rotary, { pages: layer.pages, table, lengths: before }, layer.form);
        before.dispose();
      },
      attend: (q, y, p) => {
        const grown = own();
        ops.latentDecode(rt, q, { pages: layer.pages, table, lengths: grown }, y, { ...layer.form, ...p });
        grown.dispose();
      },
    };
  }

  end(): void {
    for (const tensor of this.places ? [this.places.table, this.places.lengths] : []) tensor.dispose();
    this.places = undefined;
  }

  dispose(): void {
    this.end();
    for (const tensor of this.tensors()) tensor.dispose();
    this.layers.fill(undefined);
  }

  private layer(stored: Parameters<typeof latentForm>[1]): Layer {
    const { form, bytes } = latentForm(this.scheme, stored);
    return { form, pages: this.rt.allocate('u8', [this.shape.slots * this.each, bytes]) };
  }

  private pagesOf(slot: number): number[] {
    return Array.from({ length: this.each }, (_, i) => slot * this.each + i);
  }

  /** Whole prompts. */
  private pack({ form, pages }: Layer, { entries }: Step, c: Tensor, rotary: Tensor): void {
    let first = 0;
    for (const { slot, ids } of entries) {
      const table = uploadTyped(this.rt, 'i32', [this.each], Int32Array.from(this.pagesOf(slot)));
      const [own, keys] = [c, rotary].map((x) => {
        const width = x.shape[1] as number;
        return x.view([ids.length, width], first * width);
      }) as [Tensor, Tensor];
      ops.latentPack(this.rt, own, keys, table, pages, form);
      for (const tensor of [own, keys, table]) tensor.dispose();
      first += ids.length;
    }
  }

  /** Of a step, for all blocks; every block's appending grows its own lengths. */
  private placesOf(step: Step): Places {
    if (this.places?.step === step) return this.places;
    this.end();
    const { entries } = step;
    const { blocks } = this.shape;
    const table = Int32Array.from(entries.flatMap(({ slot }) => this.pagesOf(slot)));
    const lengths = Int32Array.from({ length: blocks * entries.length }, (_, i) => entries[i % entries.length]!.past);
    this.places = {
      step,
      table: uploadTyped(this.rt, 'i32', [entries.length, this.each], table),
      lengths: uploadTyped(this.rt, 'i32', [blocks, entries.length], lengths),
    };
    return this.places;
  }
}
