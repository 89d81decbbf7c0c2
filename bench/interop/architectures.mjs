// node bench/interop/architectures.mjs OUT [NAME ...]: every architecture of test/fixtures/architectures quantized by rtn and gptq to 4 bits in
// groups of 32, packed as compressed-tensors, with the logits that lpq computes: what architectures.py compares with transformers. What has
// no form in compressed-tensors stays as lpq quantize writes it.
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, renameSync, rmSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { createRuntime } from '../../dist/native/binding.js';
import { GPTQ_DEFAULTS } from '../../dist/src/gptq/options.js';
import { gptqQuantizer } from '../../dist/src/gptq/quantizer.js';
import { quantizeCheckpoint } from '../../dist/src/quantize/run.js';
import { schemeFromOptions } from '../../dist/src/quantize/scheme.js';
import { rtnQuantizer } from '../../dist/src/rtn/quantizer.js';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..');
const [out, ...names] = process.argv.slice(2);
if (out === undefined || existsSync(out)) {
  console.error('node bench/interop/architectures.mjs OUT [NAME ...], OUT a directory that does not exist');
  process.exit(2);
}
mkdirSync(out, { recursive: true });
const fixtures = path.join(root, 'test', 'fixtures', 'architectures');
const lpq = (...args) => execFileSync(process.execPath, [path.join(root, 'bin', 'lpq.js'), ...args], { stdio: 'pipe' });
const sequences = Array.from({ length: 8 }, (_, s) =>
  Int32Array.from({ length: 40 }, (_, i) => (i * i * 7 + s * 41) % 64),
);
const calibration = {
  name: 'made',
  sha256: '0'.repeat(64),
  seed: 0,
  length: 40,
  kind: 'windows',
  sequences,
  tokens: 320,
  available: 8,
};
const runtime = createRuntime(2);
const all = readdirSync(fixtures, { withFileTypes: true }).filter((entry) => entry.isDirectory());
for (const { name } of all.filter((entry) => names.length === 0 || names.includes(entry.name)))
  for (const method of ['rtn', 'gptq']) {
    const source = path.join(fixtures, name);
    const packed = path.join(out, `${name}.${method}`);
    await quantizeCheckpoint([runtime], {
      source,
      output: `${packed}.q`,
      scheme: schemeFromOptions({ bits: 4, groupSize: 32 }),
      rules: [],
      quantizer: method === 'rtn' ? rtnQuantizer() : gptqQuantizer(GPTQ_DEFAULTS),
      calibration: method === 'rtn' ? undefined : calibration,
      lmHead: false,
      options: {},
      version: 'interop',
    });
    try {
      lpq('pack', `${packed}.q`, '--target', 'compressed-tensors', '-o', packed);
    } catch (error) {
      if (!String(error.stderr).includes('LPQ_TARGET')) throw error;
      renameSync(`${packed}.q`, packed);
    }
    lpq('logits', packed, '--ids', path.join(source, 'golden.safetensors'), '-o', `${packed}.logits.safetensors`);
    rmSync(`${packed}.q`, { recursive: true, force: true });
    console.log(name, method);
  }
