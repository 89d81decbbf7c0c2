/** How the cache of latent attention is quantized (spec.md, "latent"): asymmetric codes, a scale and a zero of f16 a group. */
export interface KvLatents {
  readonly bits: 2 | 4 | 8;
  /** Dims of the latent of one token that share a scale and a zero. */
  readonly group: number;
}

/** What a page of latents holds; `bits` may be 16: latents as they are. */
export interface LatentPageShape {
  readonly bits: 2 | 4 | 8 | 16;
  readonly group: number;
  /** Dims of the latent, and of the rotary key. */
  readonly latent: number;
  readonly rotary: number;
  readonly tokens: number;
}

/** Bytes of the three parts of a page: codes, numbers, rotary keys. */
export function latentPageParts({ bits, group, latent, rotary, tokens }: LatentPageShape): [number, number, number] {
  return [(tokens * latent * bits) / 8, bits === 16 ? 0 : (4 * tokens * latent) / group, 2 * tokens * rotary];
}
