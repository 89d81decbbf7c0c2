/** A string as it is; '' for anything else that a file may have in its place. String() would throw for an object whose toString is null. */
export function textOf(value: unknown): string {
  return typeof value === 'string' ? value : '';
}
