import type { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import type { GgufFile } from '../../formats/gguf/read.js';
import type { NativeRuntime } from '../../native/binding.js';
import type { Carried } from '../model/gguf/carried.js';
import type { GgufModel } from '../model/gguf/model.js';
import type { WeightSource } from '../model/source.js';
import type { GivenImportance } from './gguf-importance.js';
import type { BlocksFrom } from './gguf-metadata.js';
import type { Recorder } from './report.js';

export const GGUF_FILE = 'model.gguf';

/** What the checks of a GGUF file share. */
export interface GgufContext {
  readonly rt: NativeRuntime;
  readonly recorder: Recorder;
  readonly file: GgufFile;
  /** What config.json says, in GGUF's words. */
  readonly model: GgufModel;
  readonly canonical: CanonicalCheckpoint | undefined;
  /** What it carries. */
  readonly carried: Carried | undefined;
}

/** The same, once it is known what the file must hold. */
export interface GgufExpectation extends GgufContext {
  readonly from: BlocksFrom;
  /** What was quantized, where it is at hand. */
  readonly source: WeightSource | undefined;
  /** The importance matrix of the search, if it is given. */
  readonly given: GivenImportance | undefined;
}
