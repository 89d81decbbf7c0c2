/** Bounds of a number. */
export interface Bounds {
  readonly least?: number;
  readonly above?: number;
  readonly most?: number;
  readonly integer?: true;
}

export type OptionValue = string | number | boolean;
/** Fields of methods, checked by what their options take. */
export type OptionValues = Readonly<Record<string, OptionValue | undefined>>;

/** A setting of a quantization: an option of the command line, a field of recipes and of what a checkpoint records. */
export interface MethodOption {
  /** Its name in recipes and records. */
  readonly field: string;
  /** As the command line declares it: '--order <kind>'. '--no-NAME' makes the field false. */
  readonly flags: string;
  readonly help: string;
  /** Words, a number, true and false, or any text. */
  readonly takes: readonly string[] | Bounds | 'switch' | 'text';
  /** In words, where `takes` does not say it all. */
  readonly says?: string;
  /** Its value where nobody gives one; it may depend on the others. */
  readonly otherwise?: OptionValue | ((given: OptionValues) => OptionValue);
  /** Its value where the option is given without one ('--tune [steps]'). */
  readonly bare?: OptionValue;
  /** Its value with saved statistics, which have no activations: any other is refused. */
  readonly withoutActivations?: OptionValue;
}

/** '--order' of '--order <kind>'. */
export function flagOf({ flags }: Pick<MethodOption, 'flags'>): string {
  return flags.split(' ', 1)[0] as string;
}

/** What an option takes, in words. */
export function saysOf({ takes, says }: MethodOption): string {
  if (says !== undefined) return says;
  if (typeof takes === 'string') return 'true or false';
  return isWords(takes) ? oneOf(takes) : boundsInWords(takes);
}

export function isWords(takes: MethodOption['takes']): takes is readonly string[] {
  return typeof takes === 'object' && 'length' in takes;
}

/** 'a, b or c'. */
export function oneOf(words: readonly string[]): string {
  return [words.slice(0, -1).join(', '), words.at(-1)].filter(Boolean).join(' or ');
}

function boundsInWords({ least, above, most, integer }: Bounds): string {
  const kind = integer ? 'an integer' : 'a number';
  if (above !== undefined) return `${kind} above ${above}${most === undefined ? '' : `, at most ${most}`}`;
  return most === undefined ? `${kind} of at least ${least}` : `${kind} from ${least} to ${most}`;
}
