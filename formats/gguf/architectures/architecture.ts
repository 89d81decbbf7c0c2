import type { GgufFacts } from '../source/facts.js';
import type { PartNames } from './parts.js';

export type Json = Readonly<Record<string, unknown>>;

/** An architecture of llama.cpp as a checkpoint has it: names of tensors either way, and how metadata becomes config.json. */
export interface GgufArchitecture {
  /** general.architecture. */
  readonly name: string;
  /** The class of config.json. */
  readonly className: string;
  readonly outer: PartNames;
  /** What blocks begin with, and their parts in the order of a file that lpq writes. */
  readonly blocks: string;
  readonly block: PartNames;
  /** Parts of blocks of a checkpoint that has a tensor whose name ends in this (Architecture.spelled). */
  readonly spelled?: { readonly has: string; readonly block: PartNames };
  /** The file has 1 + weight of every norm. */
  readonly normsPlusOne?: true;
  /** Latent attention: the linear of a block that makes keys and values of the latent vector, of which the file may have halves. */
  readonly latent?: string;
  /** The row of those of the same model_type that have experts. */
  readonly withExperts?: string;
  /** What config.json says of a file that is read, where language models alone have no model_type of their own. */
  readonly readAs?: string;
  /** Matrices and norms that it wants in blocks that share keys and values of others, and does not read there. */
  readonly sharing?: readonly string[];
  /** Values of heads may be narrower than keys. */
  readonly ownValues?: true;
  /** Of several rows of one name: whether a file is of this one, if it does not name it (lpq.model_type). The row without is the usual one. */
  readonly is?: (facts: GgufFacts) => boolean;
  /** Tensors of one number that every block has, by the key under which the file lists them: the name in its block, and the shape. */
  readonly scalars?: Readonly<Record<string, { readonly to: string; readonly shape: readonly number[] }>>;
  /** Keys of config.json beside those of every model. */
  readonly config: (facts: GgufFacts, shared: Shared) => Json;
}

/** By model_type of config.json, and `TYPE with experts` where those have another name in llama.cpp. */
export type GgufArchitectures = Readonly<Record<string, GgufArchitecture>>;

/** What every architecture says under the same names. */
export interface Shared {
  readonly hidden: number;
  readonly heads: number;
  readonly headDim: number;
  readonly layers: number;
}
