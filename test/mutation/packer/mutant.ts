/** A fault put into the packer: one place of one compiled file. */
export interface Mutant {
  /** Module of dist, without its ending. */
  readonly file: string;
  /** Text of the compiled file; it must stand there exactly once. */
  readonly find: string;
  readonly replace: string;
  /** What the packer does wrong then. */
  readonly breaks: string;
  /** Targets, or cases (TARGET/VARIANT), that come by the place. */
  readonly cases: readonly string[];
  /** Why nobody can tell, where that is so: the packer's output means the same. */
  readonly equivalent?: string;
}

type Row = readonly [find: string, replace: string, breaks: string, equivalent?: string];

/** Mutants of one file. */
export function mutants(file: string, cases: readonly string[], table: readonly Row[]): Mutant[] {
  return table.map(([find, replace, breaks, equivalent]) => ({
    ...{ file, find, replace, breaks, cases },
    ...(equivalent !== undefined && { equivalent }),
  }));
}
