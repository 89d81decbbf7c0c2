import type { NativeRuntime } from '../../../native/binding.js';
import { quantizeCheckpoint } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { rtnQuantizer } from '../../../src/rtn/quantizer.js';

type Rules = Parameters<typeof quantizeCheckpoint>[1]['rules'];

/** Rounds `source` to 4 bits in groups of 32, but for what `rules` say, into `output`. */
export async function rounded(
  runtime: NativeRuntime,
  source: string,
  output: string,
  rules: Rules = [],
): Promise<void> {
  await quantizeCheckpoint([runtime], {
    source,
    output,
    scheme: schemeFromOptions({ bits: 4, groupSize: 32 }),
    rules,
    quantizer: rtnQuantizer(),
    calibration: undefined,
    lmHead: false,
    options: {},
    version: 'test',
  });
}
