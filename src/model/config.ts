import { LpqError } from '../core/error.js';

/** A value that an architecture fixes, or that config.json sets under one of `keys` (first present and not null wins). */
export type Setting<T> = T | { readonly keys: readonly string[]; readonly otherwise: T };

/** Typed reading of config.json: every wrong type or range is LPQ_CONFIG, naming the key and the directory. */
export class Config {
  constructor(
    readonly raw: Readonly<Record<string, unknown>>,
    /** For messages: the model's directory, and the path of a nested object in config.json. */
    private readonly where: string,
  ) {}

  /** The first of `keys` that is present and not null; undefined when none is. */
  find(...keys: string[]): { key: string; value: unknown } | undefined {
    for (const key of keys) {
      const value = this.raw[key];
      if (value !== undefined && value !== null) return { key, value };
    }
    return undefined;
  }

  /** True when the key is written, null included: some classes tell null (none) from absent (their default). */
  has(key: string): boolean {
    return this.raw[key] !== undefined;
  }

  number(keys: readonly string[], otherwise: number): number;
  number(keys: readonly string[], otherwise?: number): number | undefined;
  number(keys: readonly string[], otherwise?: number): number | undefined {
    const found = this.find(...keys);
    if (!found) return otherwise;
    if (typeof found.value === 'number' && Number.isFinite(found.value)) return found.value;
    throw this.error(found.key, 'is not a number', found.value, 'a number');
  }

  /** A count from `least` to `most`; without `otherwise` the key is required. */
  count(keys: readonly string[], otherwise?: number, least = 1, most = Number.MAX_SAFE_INTEGER): number {
    const value = this.number(keys, otherwise);
    if (value === undefined)
      throw new LpqError('LPQ_CONFIG', `${this.where} lacks '${keys[0]}', which the architecture needs`, {
        expected: keys.length > 1 ? `one of ${keys.join(', ')}` : 'a positive integer',
      });
    if (!Number.isSafeInteger(value) || value < least || value > most)
      throw this.error(
        this.find(...keys)?.key ?? String(keys[0]),
        'is out of range',
        value,
        most < Number.MAX_SAFE_INTEGER ? `an integer from ${least} to ${most}` : `an integer of at least ${least}`,
      );
    return value;
  }

  text(keys: readonly string[], otherwise: string): string {
    const found = this.find(...keys);
    if (!found) return otherwise;
    if (typeof found.value === 'string') return found.value;
    throw this.error(found.key, 'is not a string', found.value, 'a string');
  }

  /** A list of strings or numbers, [] when absent. */
  list<T extends 'string' | 'number'>(key: string, of: T): readonly (T extends 'string' ? string : number)[] {
    const found = this.find(key);
    if (!found) return [];
    if (Array.isArray(found.value) && found.value.every((item) => typeof item === of)) return found.value;
    throw this.error(key, `is not a list of ${of}s`, found.value, `a list of ${of}s`);
  }

  /** A nested object, undefined when absent or null. */
  object(key: string): Config | undefined {
    const found = this.find(key);
    if (!found) return undefined;
    if (typeof found.value === 'object' && !Array.isArray(found.value))
      return new Config(found.value as Record<string, unknown>, `${this.where}: '${key}'`);
    throw this.error(key, 'is not an object', found.value, 'an object');
  }

  flag(setting: Setting<boolean>): boolean {
    if (typeof setting === 'boolean') return setting;
    const found = this.find(...setting.keys);
    if (!found) return setting.otherwise;
    if (typeof found.value === 'boolean') return found.value;
    throw this.error(found.key, 'is neither true nor false', found.value, 'true or false');
  }

  /** A number that may be switched off: 0 without a setting, and for an explicit null. Negative is LPQ_CONFIG. */
  optional(setting: Setting<number> | undefined): number {
    if (setting === undefined) return 0;
    if (typeof setting === 'number') return setting;
    const written = setting.keys.find((key) => this.has(key));
    const value = this.number(setting.keys, written === undefined ? setting.otherwise : 0);
    if (value >= 0) return value;
    throw this.error(written ?? String(setting.keys[0]), 'is negative', value, 'a positive number, or null');
  }

  /** LPQ_CONFIG about one key. */
  error(key: string, what: string, got: unknown, expected: unknown): LpqError {
    return new LpqError('LPQ_CONFIG', `${this.where}: '${key}' ${what}`, {
      got: typeof got === 'string' || typeof got === 'number' ? got : JSON.stringify(got),
      expected,
    });
  }
}

/** A setting above 0, else LPQ_CONFIG. */
export function positive(config: Config, setting: Setting<number>): number {
  const value = settingNumber(config, setting);
  if (value > 0) return value;
  throw config.error(keyOf(setting), 'is not positive', value, 'a positive number');
}

/** The key under which messages name a setting that config.json may set. */
export function keyOf(setting: Setting<unknown>): string {
  return (setting as { keys: readonly string[] }).keys[0] as string;
}

export function settingNumber(config: Config, setting: Setting<number>): number {
  return typeof setting === 'number' ? setting : config.number(setting.keys, setting.otherwise);
}
