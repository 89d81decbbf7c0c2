/** 1536 -> '1.5 kB': decimal units, as disks and downloads are sold. */
export function bytes(count: number): string {
  return scaled(count, ['B', 'kB', 'MB', 'GB', 'TB']);
}

/** 8030261248 -> '8.03 B' parameters; below 1000 as it is. */
export function count(value: number): string {
  return scaled(value, ['', 'K', 'M', 'B', 'T']).trim();
}

/** 75.2 -> '1m 15s'. */
export function duration(seconds: number): string {
  if (seconds < 10) return `${seconds.toFixed(1)}s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole}s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes}m ${String(whole % 60).padStart(2, '0')}s`;
  return `${Math.floor(minutes / 60)}h ${String(minutes % 60).padStart(2, '0')}m`;
}

/** 4.127 -> '4.13'; 0.00123 -> '0.00123'; null -> '-'. */
export function significant(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined) return '-';
  return value === 0 ? '0' : String(Number(value.toPrecision(digits)));
}

function scaled(value: number, units: readonly string[]): string {
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit++;
  }
  const text =
    unit === 0 ? String(value) : value < 10 ? value.toFixed(2) : value < 100 ? value.toFixed(1) : value.toFixed(0);
  return `${text} ${units[unit]}`;
}
