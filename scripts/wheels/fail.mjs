/** Ends with one sentence and what to do. */
export function fail(what, remedy) {
  throw new WheelsError(what, remedy);
}

export class WheelsError extends Error {
  constructor(what, remedy) {
    super(what);
    this.remedy = remedy;
  }
}
