/** One module of a ModelOpt checkpoint. */
export interface ModelOptAlgo {
  readonly algo: string;
  readonly group?: number | undefined;
}

/** The producer of the layout: loaders of hf_quant_config.json look for this name and refuse others. */
const PRODUCER = { name: 'modelopt', version: '0.47.0' };

/**
 * The two configurations of one quantization: hf_quant_config.json, which TensorRT-LLM reads, and quantization_config of config.json, which
 * vLLM prefers. They state one algorithm for all modules, or MIXED_PRECISION with one for each. `plain`: names of unquantized linears.
 */
export function modelOptConfig(options: {
  readonly modules: ReadonlyMap<string, ModelOptAlgo>;
  readonly plain: readonly string[];
  readonly kvScales: boolean;
}): { readonly file: Record<string, unknown>; readonly inline: Record<string, unknown> } {
  const { modules, plain, kvScales } = options;
  const kinds = new Map([...modules.values()].map(({ algo, group }) => [algo, group]));
  const [[only, group] = ['', undefined]] = kinds;
  const mixed = kinds.size > 1;
  const said = {
    quant_algo: mixed ? 'MIXED_PRECISION' : only,
    ...(!mixed && group !== undefined && { group_size: group }),
    ...(mixed && {
      quantized_layers: Object.fromEntries(
        [...modules].map(([name, { algo, group: size }]) => [
          name,
          { quant_algo: algo, ...(size !== undefined && { group_size: size }) },
        ]),
      ),
    }),
  };
  return {
    file: {
      producer: PRODUCER,
      quantization: { ...said, kv_cache_quant_algo: kvScales ? 'FP8' : null, exclude_modules: [...plain] },
    },
    inline: {
      quant_method: 'modelopt',
      ...said,
      kv_cache_scheme: kvScales ? { dynamic: false, num_bits: 8, type: 'float' } : null,
      ignore: [...plain],
      producer: PRODUCER,
    },
  };
}
