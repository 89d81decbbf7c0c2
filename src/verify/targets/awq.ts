import type { ArtifactManifest } from '../../../formats/artifact/schema.js';
import { checkKeys, ELSEWHERE, type Fail, type Json, strings } from '../keys.js';
import { isPacked } from '../layouts/index.js';
import type { Linear, ModelLinears } from '../linears.js';
import { plainScheme, type Reading, type Scheme, type VerifiedTarget } from '../target.js';

const packed = ({ module }: Linear): boolean => module !== undefined && isPacked(module.layout);

/** AWQ: one scheme; a linear is plain when an entry of modules_to_not_convert is part of its name. qzeros are always read. */
function read(fail: Fail, config: Json, _manifest: ArtifactManifest, { linears }: ModelLinears): Reading {
  const packedHead = [...linears.values()].some((linear) => linear.head && packed(linear));
  checkKeys(fail, 'quantization_config', config, {
    quant_method: 'awq',
    bits: ELSEWHERE,
    group_size: ELSEWHERE,
    zero_point: true,
    version: 'gemm',
    modules_to_not_convert: ELSEWHERE,
    ...(packedHead && { lm_head: true }),
  });
  const { modules_to_not_convert: stated } = config;
  const left = strings(stated);
  if (stated !== null && (!Array.isArray(stated) || left.length !== stated.length || left.length === 0))
    fail('quantization_config.modules_to_not_convert is not a list of names', stated, 'null, or names');
  const plain = [...linears.values()].filter((linear) => !packed(linear)).map(({ name }) => name);
  for (const part of left)
    if (!plain.some((name) => name.includes(part)))
      fail(
        `quantization_config.modules_to_not_convert names '${part}', which is not a plain linear of the model`,
        part,
      );
  return {
    scheme({ name }): Scheme | undefined {
      if (left.some((part) => name.includes(part))) return undefined;
      return { bits: config.bits, group: config.group_size, sym: true };
    },
    byName: () => false,
  };
}

export const awq: VerifiedTarget = {
  name: 'awq',
  layouts: ['awq'],
  left: 'dense',
  files: ['quantize_config.json'],
  config: { read, scheme: (module) => ({ ...plainScheme(module), sym: true }) },
};
