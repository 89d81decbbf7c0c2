/** Device memory that activations may keep between two sweeps, in bytes; what does not fit is parked on the host. */
export class Room {
  constructor(private left: number) {}

  /** Whether `bytes` more fit at all. */
  fits(bytes: number): boolean {
    return bytes <= this.left;
  }

  /** Takes `bytes` if they fit. */
  take(bytes: number): boolean {
    if (bytes > this.left) return false;
    this.left -= bytes;
    return true;
  }
}
