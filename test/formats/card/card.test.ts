import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { cpSync, existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { parse } from 'yaml';
import { lpq, model, scratch } from '../../src/cli/lpq.js';

interface Head {
  readonly base_model?: string;
  readonly license?: string;
  readonly tags: readonly string[];
  readonly quantization: { readonly method: string; readonly bits: number; readonly bits_per_weight: number };
}

/** A card's head, and what follows it. */
function card(dir: string): { head: Head; body: string; text: string } {
  const text = readFileSync(path.join(dir, 'README.md'), 'utf8');
  const [, head = '', body = ''] = /^---\n([\s\S]*?)\n---\n([\s\S]*)$/.exec(text) ?? [];
  return { head: parse(head) as Head, body, text };
}

/** The hash of all weights, by the manifest alone. */
function weightsHash(dir: string): string {
  const manifest = JSON.parse(readFileSync(path.join(dir, 'lpq.json'), 'utf8'));
  const hashes: [string, string][] = Object.entries(manifest.carried);
  for (const [name, module] of Object.entries(manifest.modules) as [string, Record<string, object>][]) {
    if (module.tensors) hashes.push(...(Object.entries(module.tensors) as [string, string][]));
    else for (const [part, hash] of Object.entries(module.sha256 ?? {})) hashes.push([`${name}.${part}`, hash]);
  }
  const lines = hashes.sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, hash]) => `${name} ${hash}\n`);
  return createHash('sha256').update(lines.join('')).digest('hex');
}

const BASE = '---\nlicense: apache-2.0\nlanguage: [en]\nwidget: 1\n---\n# Tiny\n';

test('every directory has a card: what it is, of what, how well, how to serve, hashes', async (t) => {
  const dir = scratch(t);
  const commit = 'c'.repeat(40);
  const source = path.join(dir, 'models--acme--tiny', 'snapshots', commit);
  cpSync(model, source, { recursive: true, dereference: true });
  writeFileSync(path.join(source, 'README.md'), BASE);
  const out = (name: string) => path.join(dir, name);
  const quantize = ['quantize', source, '--bits', '4', '--group-size', '128', '--method', 'rtn', '--quiet'];
  const commands: readonly (readonly string[])[] = [
    [...quantize, '-o', out('q')],
    ['pack', out('q'), '--target', 'gptq', '-o', out('gptq'), '--quiet'],
    ['pack', out('q'), '--target', 'gguf', '-o', out('gguf'), '--quiet'],
    ['pack', out('q'), '--for', 'vllm', '-o', out('vllm'), '--quiet'],
    // Without lpq.json it is what anybody else's GPTQ is.
    ['pack', out('gptq-alone'), '--target', 'sm90', '-o', out('again'), '--quiet'],
  ];
  for (const command of commands) {
    const ran = await lpq(command);
    assert.equal(ran.code, 0, ran.stderr);
    if (!command.includes('gptq')) continue;
    cpSync(out('gptq'), out('gptq-alone'), { recursive: true });
    rmSync(path.join(out('gptq-alone'), 'lpq.json'));
  }
  for (const [name, serve, bits] of [
    ['q', /lpq pack DIR --for vllm/, 4.125],
    ['gptq', /vllm serve DIR/, 4.125],
    ['gguf', /llama-server -m DIR\/model\.gguf/, 4.125],
    ['vllm', /\nvllm serve DIR\n/, 4.125],
    ['again', /lpq generate DIR/, 4.125],
  ] as const) {
    const { head, body } = card(out(name));
    if (name !== 'again') {
      assert.equal(head.base_model, 'acme/tiny', name);
      assert.match(body, new RegExp(`\\[acme/tiny\\]\\(https://huggingface.co/acme/tiny\\), commit \`${commit}\``));
    }
    assert.equal(head.license, 'apache-2.0', name);
    assert.ok(!('widget' in head), name);
    assert.ok(head.tags.includes('4-bit') && head.tags.includes('lpq'), name);
    assert.equal(head.quantization.bits, 4);
    // Codes of 4 bits and an f16 scale every 128; the head of a tied model is none of the modules.
    assert.equal(head.quantization.bits_per_weight, bits, name);
    assert.match(body, serve, name);
    assert.match(body, new RegExp(weightsHash(out(name))), name);
    assert.equal(readFileSync(path.join(out(name), 'README.base.md'), 'utf8'), BASE, name);
  }
  const verified = await lpq(['verify', out('vllm'), '--against', out('q')]);
  assert.equal(verified.code, 0, verified.stderr);
  assert.doesNotMatch(verified.stdout + verified.stderr, /README/);
});

test('a directory of no known name names no base model, and a card that is no YAML leaves nothing', async (t) => {
  const dir = scratch(t);
  const source = path.join(dir, 'mine');
  cpSync(model, source, { recursive: true, dereference: true });
  writeFileSync(path.join(source, 'README.md'), '---\n: [\n---\n');
  const out = path.join(dir, 'out');
  const ran = await lpq(['quantize', source, '--bits', '3', '--method', 'rtn', '-o', out, '--quiet']);
  assert.equal(ran.code, 0, ran.stderr);
  const { head, body } = card(out);
  assert.equal(head.base_model, undefined);
  assert.match(body, /quantized from \| `mine` \|/);
  assert.ok(existsSync(path.join(out, 'README.base.md')));
});
