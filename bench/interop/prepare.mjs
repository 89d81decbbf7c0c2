// node bench/interop/prepare.mjs OUT: tiny-llama quantized and packed for every target that other programs read, with the
// logits that lpq computes from each: what loaders.py compares with. Some 39 MB, 26 as .tar.xz (the embeddings are the same in all).
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, rmSync, statSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { writeSafetensors } from '../../dist/formats/safetensors/write.js';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..');
const [out] = process.argv.slice(2);
if (out === undefined || existsSync(out)) {
  console.error('node bench/interop/prepare.mjs OUT, a directory that does not exist');
  process.exit(2);
}
const model = path.join(root, 'share', 'tiny-llama');
const lpq = (...args) => execFileSync(process.execPath, [path.join(root, 'bin', 'lpq.js'), ...args], { stdio: 'pipe' });

/** Name of the directory: target, then options of quantize. */
const CASES = {
  'gptq-w4-sym': ['gptq', '--bits', '4', '--group-size', '128'],
  'gptq-w2-sym': ['gptq', '--bits', '2', '--group-size', '32'],
  'gptq_v2-w4-asym': ['gptq_v2', '--bits', '4', '--asym', '--group-size', '64'],
  'gptq_v2-w3-asym': ['gptq_v2', '--bits', '3', '--asym', '--group-size', '128'],
  'awq-w4-asym': ['awq', '--bits', '4', '--asym', '--group-size', '128'],
  'ct-w4-sym': ['compressed-tensors', '--bits', '4', '--group-size', '128'],
  'ct-w4-asym': ['compressed-tensors', '--bits', '4', '--asym', '--group-size', '32'],
  'ct-w3-sym': ['compressed-tensors', '--bits', '3', '--group-size', '64'],
  'ct-w8a8-int8': ['compressed-tensors-w8a8', '--bits', '8', '--group-size', 'channel'],
  'ct-fp8': ['compressed-tensors', '--dtype', 'f8e4m3'],
  'ct-nvfp4': ['compressed-tensors', '--dtype', 'nvfp4'],
  'ct-mxfp4': ['compressed-tensors', '--dtype', 'mxfp4'],
};

mkdirSync(out, { recursive: true });
const ids = path.join(out, 'ids.safetensors');
const data = Int32Array.from({ length: 48 }, (_, i) => 3 + ((i * 911 + 17) % 2040));
await writeSafetensors(ids, [{ name: 'input_ids', dtype: 'I32', shape: [1, 48], data }]);
for (const [name, [target, ...options]] of Object.entries(CASES)) {
  const quantized = path.join(out, `${name}.q`);
  const packed = path.join(out, name);
  lpq('quantize', model, '-o', quantized, '--samples', '16', ...options);
  lpq('pack', quantized, '--target', target, '-o', packed);
  lpq('verify', packed, '--against', quantized);
  lpq('logits', packed, '--ids', ids, '-o', path.join(out, `${name}.logits.safetensors`));
  rmSync(quantized, { recursive: true });
  for (const file of ['tokenizer.json', 'tokenizer_config.json', 'train_info.json']) rmSync(path.join(packed, file));
  console.log(name);
}
const bytes = readdirSync(out, { recursive: true }).reduce((sum, file) => sum + statSync(path.join(out, file)).size, 0);
console.log(`${out}: ${(bytes / 1e6).toFixed(1)} MB`);
