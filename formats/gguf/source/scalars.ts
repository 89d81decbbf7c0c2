import type { TensorEntry } from '../../safetensors/header.js';
import { scalarsOf } from '../scalars.js';
import type { GgufSourceModel } from './model.js';

/** Numbers of blocks that the file lists among its keys, each a tensor of the checkpoint. Throws LPQ_GGUF for a list that is missing. */
export function scalarsIn({ architecture, facts, shared: { layers } }: GgufSourceModel) {
  return new Map(
    scalarsOf(architecture, layers).flatMap(([key, list]) => {
      const values = facts.each(key, layers);
      return list.map(({ name, shape }, layer) => {
        const entry: TensorEntry = { name, dtype: 'F32', shape, begin: 0, end: 4 };
        return [name, { entry, value: values[layer] as number }] as const;
      });
    }),
  );
}
