import type { Artifact } from './open.js';
import type { Rehash } from './rehash.js';

/** What is changed; the kinds of the report. */
export type Kind =
  | 'header'
  | 'tensor bytes'
  | 'tensors'
  | 'config.json'
  | 'quantization_config'
  | 'its mirror'
  | 'tokenizer'
  | 'other JSON'
  | 'index'
  | 'manifest'
  | 'manifest, modules'
  | 'files'
  | 'gguf metadata'
  | 'gguf tensors';

/** One change that an artifact allows. */
export interface Site {
  readonly kind: Kind;
  /** In words: where, what it was, what it is. */
  readonly what: string;
  /** Why nobody needs to report it (docs/verification.md); absent for what must be reported. */
  readonly harmless?: string;
  /** Which hashes follow; default: each in turn. */
  readonly rehash?: Rehash;
  /** The seal is taken away rather than made anew. */
  readonly unsealed?: true;
  /** Changes a copy of the artifact. */
  apply(artifact: Artifact): void;
}
