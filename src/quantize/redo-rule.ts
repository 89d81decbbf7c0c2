/** A finished checkpoint of which everything is kept but the modules whose path matches. */
export interface Redo {
  readonly match: RegExp;
  readonly from: string;
}

/** The rule that leaves all modules alone but those that are redone: the first of a run's. */
export function allButRedone(match: RegExp): RegExp {
  return new RegExp(`^(?!.*(?:${match.source}))`, match.flags);
}
