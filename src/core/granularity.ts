/** How many weights share a scale: a whole row of W (`channel`), or `size` consecutive input features of a row. */
export type Granularity = { readonly kind: 'channel' } | { readonly kind: 'group'; readonly size: number };

/** Weights along K that share one scale. */
export function groupSizeOf(granularity: Granularity, k: number): number {
  return granularity.kind === 'channel' ? k : granularity.size;
}

/** Scales in a row: K / groupSize. */
export function groupCount(granularity: Granularity, k: number): number {
  return k / groupSizeOf(granularity, k);
}

/** '128' or 'channel': the form that options and tables use. */
export function printGranularity(granularity: Granularity): string {
  return granularity.kind === 'channel' ? 'channel' : String(granularity.size);
}
