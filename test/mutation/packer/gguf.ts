import { type Mutant, mutants } from './mutant.js';

const GGUF = ['gguf', 'gguf-q4_k'];
const CODES = ['gguf'];

/** Faults in model.gguf: blocks, rows, metadata, tokens. */
export const GGUF_MUTANTS: readonly Mutant[] = [
  ...mutants('formats/gguf/tokenizer', CODES, [
    [
      'return { tokens, types };',
      'return { tokens: [...tokens.slice(1), tokens[0]], types };',
      'tokens are shifted by one',
    ],
    ['value: merges }]', 'value: merges.toReversed() }]', 'merges are reversed'],
    ['value: merges }]', 'value: merges.slice(0, -1) }]', 'the last merge is lost'],
    [
      "'<unk>'))\n                types[id] = TYPE.unknown;",
      "'<unk>'))\n                types[id] = TYPE.normal;",
      'the unknown token is a normal one',
    ],
    ['types[id] = TYPE.byte;', 'types[id] = TYPE.normal;', 'byte tokens are normal ones'],
    [
      'special ? TYPE.control : TYPE.userDefined',
      'special ? TYPE.userDefined : TYPE.control',
      'special tokens are user-defined ones',
    ],
    ["text(pre ?? 'default')", "text('default')", 'the splitting pattern is called default'],
    [
      '-(rank.get(token) ?? merges.length + id)',
      '(rank.get(token) ?? merges.length + id)',
      'scores have the wrong sign',
    ],
    ['bool(addsSpace(json))', 'bool(!addsSpace(json))', 'add_space_prefix is turned'],
    ["bool(adds('bos'))", "bool(!adds('bos'))", 'add_bos_token is turned'],
    ["bool(adds('eos'))", "bool(!adds('eos'))", 'add_eos_token is turned'],
    ["['eos', 'eos'],", "['eos', 'bos'],", 'the end is written over the begin'],
    ['_token_id`, u32(id)]', '_token_id`, u32(id + 1)]', 'ids of special tokens are one too large'],
    ['if (template !== undefined)', 'if (false)', 'the chat template is lost'],
    [
      'new Array(vocab).fill(TYPE.unused)',
      'new Array(vocab).fill(TYPE.normal)',
      'rows without a token are normal tokens',
    ],
    [
      'place(token, id, TYPE.normal);',
      'place(token, id === 20 ? 21 : id === 21 ? 20 : id, TYPE.normal);',
      'two tokens are exchanged',
    ],
    ["text('llama')", "text('gpt2')", 'pieces are called BPE of bytes'],
  ]),
  ...mutants('src/model/gguf/entries', GGUF, [
    ['f32(norm?.epsilon ?? 0)]', 'f32(1e-6)]', 'the epsilon is the default'],
    ['u32(plan.embedding.positions?.count ?? context)', 'u32(2048)', 'the context is 2048'],
    ['u32(routing.perToken)', 'u32(1)', 'one expert a token'],
    [
      "['expert_feed_forward_length', u32(intermediate)]",
      "['expert_feed_forward_length', u32(1)]",
      'experts of width 1',
    ],
    ["['lpq.model_type', text(modelType)]", "['lpq.model_type', text('llama')]", 'the model is called Llama'],
  ]),
  ...mutants('src/model/gguf/rope', GGUF, [
    ["['rope.freq_base', f32(rope.theta)]", "['rope.freq_base', f32(10000)]", 'the base of RoPE is 10000'],
    ["new Map([['rope_freqs.weight', factors]])", 'new Map()', 'the factors of RoPE are lost'],
  ]),
  ...mutants('formats/gguf/rope-factors', GGUF, [
    ['if (wavelength > original / low)\n            return factor;', '', 'low frequencies of RoPE are not stretched'],
  ]),
  ...mutants('formats/gguf/names', GGUF, [
    [
      'row - within + (within % 2) * (size / 2) + Math.floor(within / 2)',
      'row',
      'rows of queries and keys are not interleaved',
    ],
  ]),
  ...mutants('formats/gguf/architectures/parts', GGUF, [
    [
      "attn_k: 'self_attn.k_proj',\n    attn_v: 'self_attn.v_proj'",
      "attn_k: 'self_attn.v_proj',\n    attn_v: 'self_attn.k_proj'",
      'keys and values are exchanged',
    ],
    [
      "ffn_gate: 'mlp.gate_proj', ffn_up: 'mlp.up_proj'",
      "ffn_gate: 'mlp.up_proj', ffn_up: 'mlp.gate_proj'",
      'gate and up are exchanged',
    ],
    [
      "...ATTENTION, ffn_norm: 'post_attention_layernorm', ...MLP",
      "...ATTENTION, attn_norm: 'post_attention_layernorm', ffn_norm: 'input_layernorm', ...MLP",
      'the two norms of a block are exchanged',
    ],
    [
      'ffn_gate_exps: gate, ffn_up_exps: up,',
      'ffn_gate_exps: up, ffn_up_exps: gate,',
      'gate and up of experts are exchanged',
    ],
  ]),
  ...mutants(
    'formats/gguf/architectures/parts',
    ['gguf/mixed'],
    [
      [
        "'output_norm.weight': 'model.norm.weight'",
        "'output_norm.bias': 'model.norm.weight'",
        'the last norm has another name',
      ],
      ["'output.weight': 'lm_head.weight',\n};\nconst ATTENTION", '};\nconst ATTENTION', 'the head is left out'],
    ],
  ),
  ...mutants('formats/gguf/metadata', GGUF, [
    ['u32: 4, i32: 5,', 'u32: 5, i32: 4,', 'unsigned numbers are said to be signed'],
    ['entry.value ? 1 : 0', 'entry.value ? 0 : 1', 'truth is turned'],
    [
      "const kind = entry.type === 'f32s' ? 'f32' : 'i32';",
      "const kind = entry.type === 'f32s' ? 'f32' : 'u32';",
      'lists of numbers are said to be unsigned',
    ],
  ]),
  ...mutants('formats/gguf/write', GGUF, [
    ['slice * place.bytes;', '(place.slices - 1 - slice) * place.bytes;', 'experts are in reverse order'],
    ['for (const size of shape.toReversed())', 'for (const size of shape)', 'dimensions are the slowest first'],
    ['sink.u32(id);', 'sink.u32(id === 30 ? 1 : id);', 'bf16 is said to be f16'],
  ]),
  ...mutants('src/pack/gguf/header', GGUF, [
    ['u32(ggufType(main).fileType)', 'u32(1)', 'the file type is another'],
    ["text('model')", "text('adapter')", 'the file is said to be an adapter'],
    ["['general.quantization_version', u32(2)],", '', 'the version of the blocks is lost'],
  ]),
  ...mutants('src/pack/gguf/carried', GGUF, [
    [
      'const blocks = await searchRows(rt, first.name, stored, type);',
      'const blocks = await searchRows(rt, first.name, stored, type); { const b = blocks.bytes(); const w = b.length / blocks.shape[0]; const own = Uint8Array.from(b); b.set(own.subarray(0, b.length - w), w); }',
      'rows of the embedding are displaced by one',
    ],
    [
      'const blocks = await searchRows(rt, first.name, stored, type);',
      'const blocks = await searchRows(rt, first.name, stored, type); { const b = blocks.bytes(); const w = b.length / blocks.shape[0]; b.fill(0, b.length - w); }',
      'the last row of the embedding is zero',
    ],
    [
      'if (shape.length === 1 || WIDE.test(name))',
      'if (shape.length === 1)',
      'the router is of the type of the source',
      'the same numbers in a type that llama.cpp multiplies as well',
    ],
    [
      'ops.cast(rt, flat, part);',
      'ops.cast(rt, flat, part); await rt.sync(); part.bytes().fill(0, 0, 4);',
      'the first number of a norm is zero',
    ],
  ]),
  ...mutants('src/pack/gguf/write', GGUF, [
    [
      'const order = orderOf(context, place, module.shape[0]);',
      'const order = orderOf(context, place, module.shape[0]).map((row) => row ^ 1);',
      'neighbouring rows are exchanged',
    ],
    ['withSettings(config, undefined, place)', 'config', 'config.json keeps the quantization_config of the checkpoint'],
    [
      "except: ['lpq.json', 'config.json',",
      "except: ['tokenizer_config.json', 'lpq.json', 'config.json',",
      'tokenizer_config.json is not carried',
    ],
    ['writer.write(name, factors)', 'writer.write(name, factors.map(() => 1))', 'the factors of RoPE are all 1'],
    [
      'await takeRows(rt, plain, order)',
      'await takeRows(rt, plain, order.toReversed())',
      'plain weights have their rows reversed',
    ],
  ]),
  ...mutants('src/pack/gguf/encode', CODES, [
    ['    group,\n', '    group: 32,\n', 'every block takes a scale of its own'],
    ['        flip,\n        add,', '        flip: 0,\n        add,', 'codes stay signed'],
    ['        flip,\n        add,', '        flip,\n        add: add + 1,', 'codes are one too large'],
  ]),
  ...mutants('src/pack/gguf/forms', CODES, [
    ['(fit.center - zero + 256) % 256', '0', 'codes are not moved to the centre'],
    [
      "bits <= 4 ? 'q4_1' : 'q5_1'",
      "'q5_1'",
      'asymmetric codes of 4 bits take 5',
      'larger blocks of the very same numbers',
    ],
  ]),
];
