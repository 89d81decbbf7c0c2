import { type Mutant, mutants } from './mutant.js';

const GPTQ = ['gptq', 'gptq_v2'];
const COMPRESSED = ['compressed-tensors', 'compressed-tensors-w8a8'];
const EVERY = ['gptq', 'awq', 'compressed-tensors', 'marlin', 'comet', 'sm80'];

/** Faults in what the artifact says of itself: configs, lists of what is left plain, files, lpq.json. */
export const CONFIG_MUTANTS: readonly Mutant[] = [
  ...mutants('formats/gptq/config', GPTQ, [
    [
      "convention === 'v1' ? 'gptq' : 'gptq_v2'",
      "convention === 'v1' ? 'gptq_v2' : 'gptq'",
      'the other zero convention is stated',
    ],
    ['        bits,\n        group_size:', '        bits: 8,\n        group_size:', '8 bits are stated'],
    [
      "granularity.kind === 'channel' ? -1 : granularity.size,\n        desc_act",
      '-1,\n        desc_act',
      'whole rows are stated as groups',
    ],
    ['desc_act: options.descAct', 'desc_act: !options.descAct', 'desc_act is turned'],
    ['        sym,\n', '        sym: !sym,\n', 'sym is turned'],
    ['lm_head: options.lmHead ?? false', 'lm_head: true', 'lm_head is claimed to be quantized'],
    ["pack_dtype: 'int32'", "pack_dtype: 'int16'", 'pack_dtype says int16'],
    ['static_groups: options.staticGroups ?? false', 'static_groups: true', 'static_groups is claimed'],
    ['...(options.dynamic && { dynamic: options.dynamic }),', '', 'dynamic rules are lost'],
  ]),
  ...mutants('src/pack/gptq-target', GPTQ, [
    [
      'const unquantized = [...plain, ...plainLinears.filter',
      'const unquantized = [...plain, ...[].filter',
      "'-:' rules of plain linears are lost",
    ],
    [
      'const unquantized = [...plain, ...plainLinears',
      'const unquantized = [...[], ...plainLinears',
      "'-:' rules of modules that stayed dense are lost",
    ],
    [
      '...plainLinears.filter((each) => !roles.isHead(each))]',
      '...plainLinears.filter((each) => !roles.isHead(each)).slice(0, -1)]',
      "the last '-:' rule is lost",
    ],
    ['] = facts(other)', '] = facts(main)', 'rules of modules that differ repeat the main scheme'],
    [
      "files: { 'quantize_config.json': quantization }",
      "files: { 'quantize_config.json': { ...quantization, group_size: 32 } }",
      'quantize_config.json says another group size',
    ],
    ["files: { 'quantize_config.json': quantization }", 'files: {}', 'quantize_config.json is not written'],
  ]),
  ...mutants('src/pack/roles', GPTQ, [[')$` : `^', ')$` : `^x', 'rules match no module']]),
  ...mutants(
    'formats/awq/config',
    ['awq'],
    [
      ['bits: 4', 'bits: 8', '8 bits are stated'],
      ["granularity.kind === 'channel' ? -1 : granularity.size", '32', 'groups of 32 are stated'],
      ['zero_point: true', 'zero_point: false', 'no zero points are stated'],
      ["version: 'gemm'", "version: 'gemv'", 'another kernel form is stated'],
      ['plain.length > 0 ? [...plain] : null', 'null', 'nothing is left out'],
      ['[...plain]', '[...plain].slice(0, -1)', 'the last plain linear is not left out'],
    ],
  ),
  ...mutants(
    'src/pack/targets/awq',
    ['awq'],
    [
      [
        'const unquantized = new Set(plainLinears);',
        'const unquantized = new Set();',
        'plain linears are not left out',
      ],
      ['unquantized.add(roles.head);', 'unquantized.delete(roles.head);', 'lm_head is not left out'],
      [
        "if (action === 'fallback')\n                    unquantized.add(name);",
        '',
        'modules that stayed dense are not left out',
      ],
    ],
  ),
  ...mutants('formats/compressed-tensors/schemes', COMPRESSED, [
    ["mixed ? 'mixed-precision' : (formats[0] ?? 'dense')", "'mixed-precision'", 'the format says mixed-precision'],
    ['ignore: [...options.ignore]', 'ignore: []', 'nothing is ignored'],
    ['ignore: [...options.ignore]', 'ignore: [...options.ignore].slice(0, -1)', 'the last of ignore is lost'],
    ['ignore: [...options.ignore]', "ignore: [...options.ignore, 're:.*mlp.*']", 'packed modules are ignored'],
    [
      'num_bits: bits,\n            type,\n            symmetric: scheme.symmetric',
      'num_bits: bits - 1,\n            type,\n            symmetric: scheme.symmetric',
      'one bit fewer is stated',
    ],
    ['symmetric: scheme.symmetric', 'symmetric: !scheme.symmetric', 'symmetric is turned'],
    ['strategy: scheme.strategy', "strategy: 'channel'", 'strategy says channel'],
    ['group_size: scheme.groupSize', 'group_size: 32', 'groups of 32 are stated'],
    ["quantization_status: 'compressed'", "quantization_status: 'frozen'", 'the status says frozen'],
    ['actorder: scheme.actorder ?? null', 'actorder: null', 'actorder is lost'],
    ["strategy: 'token'", "strategy: 'tensor'", 'activations with one scale per tensor are stated'],
    ["'token', dynamic: true", "'token', dynamic: false", 'static activations are stated'],
    [
      'input_activations: activations ? activationArguments(activations) : null',
      'input_activations: null',
      'activations of 8 bits are not stated',
    ],
    [
      'output_activations: null',
      'output_activations: activationArguments(STATIC_FP8)',
      'output activations are stated',
    ],
    [
      'kv_cache_scheme: options.kvScales ? activationArguments(STATIC_FP8) : null',
      'kv_cache_scheme: activationArguments(STATIC_FP8)',
      'a cache of 8 bits is stated',
    ],
    [
      '        type,\n        symmetric: true,',
      '        type,\n        symmetric: false,',
      'asymmetric activations are stated',
    ],
  ]),
  ...mutants('src/pack/targets/compressed-tensors', COMPRESSED, [
    ['const ignore = new Set(plainLinears);', 'const ignore = new Set();', 'plain linears are not ignored'],
    ['ignore.add(roles.head);', 'ignore.delete(roles.head);', 'lm_head is not ignored'],
    ['ignore.add(moduleName);', '', 'modules that stayed dense are not ignored'],
    ["targets: ['Linear',", "targets: ['Embedding',", 'the one scheme is stated for embeddings'],
    [
      "['Linear', ...group.targets.filter(roles.isHead)]",
      "['Linear']",
      'the quantized head is not named beside the class',
    ],
    ['ignore.add(roles.head);', "ignore.add('head');", 'another name than that of the head is ignored'],
    [
      'group.targets.push(moduleName);',
      'if (group.targets.length < 3) group.targets.push(moduleName);',
      'targets are lost after the third',
    ],
  ]),
  ...mutants(
    'src/pack/layout-target',
    ['marlin', 'sm80', 'marlin/alike'],
    [
      ["manifest: 'lpq.json'", "manifest: 'manifest.json'", 'quantization_config names another manifest'],
      ['            target: name,\n', "            target: 'tilus',\n", 'quantization_config names another target'],
      [
        '...(ranks > 1 && { tensor_parallel: ranks })',
        '...(ranks > 1 && { tensor_parallel: ranks * 2 })',
        'twice the ranks are stated',
      ],
    ],
  ),
  ...mutants('src/pack/pack-checkpoint', EVERY, [
    [
      "return kv && ('form' in kv || target.activations) ? { kv } : {};",
      'return {};',
      'the scheme of the cache is dropped',
    ],
    [
      "except: ['lpq.json', 'config.json'",
      "except: ['tokenizer.json', 'lpq.json', 'config.json'",
      'tokenizer.json is not carried',
    ],
    [
      "except: ['lpq.json', 'config.json'",
      "except: ['generation_config.json', 'lpq.json', 'config.json'",
      'generation_config.json is not carried',
    ],
    [
      'readConfigText(input.dir, input.config);',
      "readConfigText(input.dir, input.config).replace('500000', '10000');",
      'config.json has another base of RoPE',
    ],
    [
      'readConfigText(input.dir, input.config);',
      "readConfigText(input.dir, input.config).replace('bfloat16', 'float16');",
      'config.json says another dtype',
    ],
  ]),
  ...mutants('src/pack/declaration', EVERY, [
    [
      '        scales,\n',
      '        scales: { ...scales, dtype: scales.dtype === "f16" ? "bf16" : scales.dtype },\n',
      'lpq.json says bf16 scales',
    ],
    ['        granularity,\n', "        granularity: { kind: 'channel' },\n", 'lpq.json says whole rows'],
    ['activations && target.activations', 'false', 'lpq.json loses the precisions of activations'],
  ]),
  ...mutants(
    'formats/directory/carry',
    ['gptq/alike', 'compressed-tensors/alike'],
    [
      ["entry.name.startsWith('.')", "entry.name.endsWith('.json')", 'no JSON file is carried'],
      [
        'await copy(place, path.join(target, file));',
        "await copy(place, path.join(target, file.replace('tokenizer_config', 'tokenizer-config')));",
        'a file is carried under another name',
      ],
    ],
  ),
  ...mutants(
    'formats/artifact/write',
    ['gptq/alike', 'compressed-tensors/alike', 'marlin/mixed'],
    [
      [
        "file !== 'lpq.json' && !file.endsWith('.safetensors')",
        "file === 'config.json'",
        'lpq.json lists config.json alone',
      ],
      [
        'await this.output.writeFile',
        "await this.output.writeFile('config.json', '{}');\n        await this.output.writeFile",
        'config.json is emptied after it was hashed',
      ],
      [
        'carried: hashes(this.plan.carried)',
        'carried: hashes(this.plan.carried.slice(1))',
        'lpq.json loses a carried tensor',
      ],
      ['...(kv && { kv }),', '', 'the scheme of the cache is not written'],
    ],
  ),
  ...mutants(
    'src/pack/write-modules',
    ['gptq/mixed', 'awq/mixed', 'marlin/mixed'],
    [
      [
        'await writer.write(next.name, tensor);',
        'await writer.write(next.name, next.name.endsWith("model.norm.weight") ? new Uint8Array(tensor.byteLength).fill(63) : tensor);',
        'a norm is written as constants',
      ],
      [
        'ops.cast(rt, wide, weight);',
        'ops.cast(rt, wide, weight); await rt.sync(); { const b = weight.bytes(); b.copyWithin(b.length / 2, 0, b.length / 2); }',
        'a dense weight has its first half twice',
      ],
    ],
  ),
  ...mutants(
    'formats/safetensors/shard-plan',
    ['compressed-tensors/alike'],
    [['total_size', 'total_bytes', 'the index calls its size otherwise']],
  ),
];
