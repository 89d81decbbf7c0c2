/** A step of long work: what is done now, and how far that is where it is known. */
export interface Activity {
  readonly what: string;
  readonly done?: number;
  readonly total?: number;
}

let listener: ((now: Activity) => void) | undefined;

/**
 * Tells what is done from here on. Whatever may last, between two steps of a bar or without one, calls it before each piece: a command
 * shows the last one while it waits (src/cli/terminal/reporter.ts). Costs nothing where nobody listens.
 */
export function tell(what: string, done?: number, total?: number): void {
  listener?.({ what, ...(done !== undefined && { done }), ...(total !== undefined && { total }) });
}

/** Who is told from now on; undefined: nobody. One command runs at a time. */
export function listen(to: ((now: Activity) => void) | undefined): void {
  listener = to;
}

/** 'hashing lm_head.weight, 3 of 12'. */
export function activityText({ what, done, total }: Activity): string {
  return total === undefined ? what : `${what}, ${done ?? 0} of ${total}`;
}
