/** A value of a file as JSON, for messages; what is nested too deeply to be written is told so. */
export function printed(value: unknown): string {
  try {
    return JSON.stringify(value) ?? 'nothing';
  } catch {
    return 'a value that is nested too deeply';
  }
}
