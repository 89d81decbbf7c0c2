/** One step of Adam: of all steps the how manyth, and how far it goes. */
export interface TrainingStep {
  readonly step: number;
  readonly rate: number;
  readonly beta1: number;
  readonly beta2: number;
}

/** Far below any gradient that matters, which are of a mean over tokens. */
export const EPSILON = 1e-12;
/** How far a factor can go. */
export const FACTORS = { least: 0.25, most: 4 } as const;
