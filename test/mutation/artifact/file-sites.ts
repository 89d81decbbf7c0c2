import { harmlessFile } from './harmless.js';
import { type Artifact, shardBytes, weightsOf } from './open.js';
import type { Site } from './site.js';

/** What a loader may take up where it finds it. */
const ADDED: Readonly<Record<string, string>> = {
  'quantize_config.json': '{"bits": 8, "group_size": 32, "desc_act": true, "sym": false}\n',
  'quant_config.json': '{"w_bit": 8, "q_group_size": 32, "zero_point": false, "version": "gemv"}\n',
  'hf_quant_config.json': '{"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}\n',
  'modeling_llama.py': 'raise SystemExit\n',
  'configuration_llama.py': 'raise SystemExit\n',
  'chat_template.jinja': '{{ messages }}\n',
  'chat_template.json': '{"chat_template": "x"}\n',
  'added_tokens.json': '{"<|new|>": 3}\n',
  'vocab.json': '{"a": 0}\n',
  'merges.txt': 'a b\n',
  'tokenizer.model': 'x',
  'preprocessor_config.json': '{}\n',
  'adapter_config.json': '{"peft_type": "LORA"}\n',
  'pytorch_model.bin': 'x',
  'pytorch_model.bin.index.json': '{"weight_map": {}}\n',
  'consolidated.00.pth': 'x',
  'model.onnx': 'x',
  'params.json': '{"dim": 1}\n',
  'model.safetensors.index.json': '{"metadata": {"total_size": 1}, "weight_map": {}}\n',
  'report.json': '{}\n',
  'deep/tokenizer.json': '{}\n',
  '.gitattributes': '* text\n',
  'README.md': '# Another\n',
};

/** Files added, removed and changed; lpq.json lists them as it should. */
export function* fileSites(artifact: Artifact): Iterable<Site> {
  const site = (what: string, name: string, apply: Site['apply']): Site => {
    const harmless = harmlessFile(name);
    return { kind: 'files', what, apply, ...(harmless !== undefined && { harmless }) };
  };
  for (const [name, text] of Object.entries(ADDED))
    if (!artifact.files.has(name))
      yield site(`${name} added`, name, ({ files }) => {
        files.set(name, Buffer.from(text));
      });
  for (const name of artifact.files.keys()) {
    yield site(`${name} removed`, name, ({ files }) => {
      files.delete(name);
    });
    yield site(`${name} emptied`, name, ({ files }) => {
      files.set(name, Buffer.alloc(0));
    });
    if (!name.endsWith('.json'))
      yield site(`${name}: a line added`, name, ({ files }) => {
        files.set(name, Buffer.concat([files.get(name) as Buffer, Buffer.from('x\n')]));
      });
  }
  yield* weightFiles(artifact);
}

function* weightFiles(artifact: Artifact): Iterable<Site> {
  const [first] = weightsOf(artifact) as [ReturnType<typeof weightsOf>[number]];
  const tensor = { ...first, dtype: typeof first.dtype === 'string' ? first.dtype : 'U8' };
  const shape = typeof first.dtype === 'string' ? first.shape : [first.bytes.length];
  for (const [file, name] of [
    ['model-00009-of-00009.safetensors', tensor.name],
    ['extra.safetensors', 'model.extra.weight'],
    ['consolidated.safetensors', tensor.name],
    ['adapter_model.safetensors', 'lora_A.weight'],
    ['model.safetensors', tensor.name],
    ['deep/model.safetensors', tensor.name],
  ] as const)
    if (!artifact.shards.some((shard) => shard.file === file))
      yield {
        kind: 'files',
        what: `${file} added, with ${name}`,
        apply: ({ files }) =>
          void files.set(file, shardBytes({ file, metadata: { format: 'pt' }, tensors: [{ ...tensor, shape, name }] })),
      };
  for (const file of ['model.gguf', 'other.gguf'])
    if (file !== 'model.gguf' || !artifact.gguf)
      yield {
        kind: 'files',
        what: `${file} added`,
        apply: ({ files }) => void files.set(file, Buffer.from('GGUF\u0003\0\0\0')),
      };
}
