import type { Reading, Scheme } from './config.js';
import { checkKeys, ELSEWHERE, type Fail, type Json, strings } from './keys.js';
import type { ModelLinears } from './linears.js';

/** AWQ: one scheme; a linear is plain when an entry of modules_to_not_convert is part of its name. qzeros are always read. */
export function awqReading(fail: Fail, config: Json, { linears }: ModelLinears): Reading {
  const packedHead = [...linears.values()].some(({ head, module }) => head && module?.layout === 'awq');
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
    fail('quantization_config.modules_to_not_convert is no list of names', stated, 'null, or names');
  const plain = [...linears.values()].filter(({ module }) => module?.layout !== 'awq').map(({ name }) => name);
  for (const part of left)
    if (!plain.some((name) => name.includes(part)))
      fail(`quantization_config.modules_to_not_convert names '${part}', which is no plain linear of the model`, part);
  return {
    scheme({ name }): Scheme | undefined {
      if (left.some((part) => name.includes(part))) return undefined;
      return { bits: config.bits, group: config.group_size, sym: true };
    },
    byName: () => false,
  };
}
