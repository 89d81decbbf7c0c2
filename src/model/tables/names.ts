/** What the authors' config.json calls otherwise than the class does. */
export interface PublishedKeys {
  /** A list of numbers under `key`, at least one for each block: the class's list `as`, with the meaning `of` of each number. */
  readonly lists: readonly {
    readonly key: string;
    readonly as: string;
    readonly of: readonly string[] | Readonly<Record<number, string>>;
  }[];
  /** The number of blocks of kind `first` in the class's list `as`; the blocks after them are `others`. */
  readonly firsts?: readonly {
    readonly key: string;
    readonly as: string;
    readonly first: string;
    readonly others: string;
  }[];
  /** Keys that say again what another does, or so many times that. */
  readonly same: Readonly<Record<string, { readonly as: string; readonly times?: number }>>;
  /** The key of the theta of blocks with a window, beside rope_theta and partial_rotary_factor. */
  readonly rope?: { readonly local: string };
  /** What gives layer_types and their number: a list of types, or a string with a letter for each. */
  readonly blockTypes?: {
    readonly list: string;
    readonly pattern: string;
    readonly letters: Readonly<Record<string, string>>;
  };
  /** An object whose settings the class has outside, by its keys; `blocks`: lists of blocks, counted from 1, that are each of a type. */
  readonly within?: {
    readonly key: string;
    readonly settings: Readonly<Record<string, string>>;
    readonly blocks: { readonly as: string; readonly types: Readonly<Record<string, string>> };
  };
}

/** A prefix spelled in another way: '' for the path of the base model, which checkpoints saved from its class leave out. */
export interface NameVariant {
  readonly prefix: string;
  readonly instead: string;
  /** Names that differ by more; the head's only where the checkpoint has it. */
  readonly block?: string;
  readonly head?: string;
}

export interface SizeKeys {
  readonly hidden: readonly string[];
  readonly layers: readonly string[];
  readonly heads: readonly string[];
  readonly kvHeads: readonly string[];
  readonly positions: readonly string[];
}

/** The types that `layer_types` gives to blocks of one branch, beside those of recurrent layers. */
export interface SingleBranch {
  readonly attention: readonly string[];
  readonly mlp: readonly string[];
  readonly experts: readonly string[];
}
