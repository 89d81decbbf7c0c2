import assert from 'node:assert/strict';
import { mkdirSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { hubEnvironment } from '../../../src/hub/environment.js';
import { isPlain, parseModelName, printModelName } from '../../../src/hub/name.js';
import { selectFiles, shardsOf } from '../../../src/hub/selection.js';
import { scratch } from './setup.js';

test('what is a name of the Hub and what is a path', () => {
  assert.deepEqual(parseModelName('meta-llama/Llama-3.1-8B'), { id: 'meta-llama/Llama-3.1-8B', revision: 'main' });
  assert.deepEqual(parseModelName('a/b@v1.0'), { id: 'a/b', revision: 'v1.0' });
  assert.deepEqual(parseModelName('a/b@refs/pr/12'), { id: 'a/b', revision: 'refs/pr/12' });
  const paths = [
    'gpt2',
    './a/b',
    '../a/b',
    '/a/b',
    '~/a',
    'a/b/c',
    'a/b/',
    'a//b',
    'a/.b',
    'a/b--c',
    'a/b..c',
    'a/b.git',
    'a b/c',
    'a/b\n',
    '',
    `a/${'b'.repeat(100)}`,
  ];
  for (const text of paths) assert.equal(parseModelName(text), undefined, text);
  for (const revision of ['', '..', '../x', 'a/../b', 'a//b', '/a', 'a/', 'a\0b', 'a b', '.hidden', 'x'.repeat(256)])
    assert.throws(() => parseModelName(`a/b@${revision}`), { code: 'LPQ_USAGE' }, revision);
});

test('a revision never leads out of the folder of revisions', () => {
  fc.assert(
    fc.property(fc.string({ unit: fc.constantFrom('a', '.', '/', '\\', '@', '-', '\0') }), (text) => {
      let name: ReturnType<typeof parseModelName>;
      try {
        name = parseModelName(`o/n@${text}`);
      } catch {
        return;
      }
      if (name === undefined) return;
      assert.equal(printModelName(name), name.revision === 'main' ? 'o/n' : `o/n@${text}`);
      const place = path.join('/refs', name.revision);
      assert.ok(place.startsWith('/refs/') && place.length === '/refs/'.length + name.revision.length);
    }),
  );
});

test('a part of a path stays where it is joined', () => {
  fc.assert(
    fc.property(fc.string(), (text) => {
      if (isPlain(text) && !text.includes('/')) assert.equal(path.dirname(path.join('/root', text)), '/root');
    }),
  );
});

test('the environment as Python reads it', (t) => {
  const home = scratch(t);
  const at = (env: Record<string, string>) => hubEnvironment({ HF_HOME: home, ...env });
  assert.equal(hubEnvironment({}).cache, path.join(os.homedir(), '.cache', 'huggingface', 'hub'));
  assert.equal(hubEnvironment({ XDG_CACHE_HOME: '/x' }).cache, '/x/huggingface/hub');
  assert.equal(at({}).cache, path.join(home, 'hub'));
  assert.equal(at({ HUGGINGFACE_HUB_CACHE: '/old' }).cache, '/old');
  assert.equal(at({ HUGGINGFACE_HUB_CACHE: '/old', HF_HUB_CACHE: '~/new' }).cache, path.join(os.homedir(), 'new'));
  // biome-ignore lint/suspicious/noTemplateCurlyInString: a shell's, not ours
  assert.equal(at({ HF_HUB_CACHE: '$DISK/a/${DISK}', DISK: '/d' }).cache, '/d/a/d');
  assert.equal(at({}).endpoint, 'https://huggingface.co');
  assert.equal(at({ HF_ENDPOINT: 'https://mirror.example/hf/' }).endpoint, 'https://mirror.example/hf');
  for (const endpoint of ['mirror.example', 'ftp://x', 'http://u:p@x', 'https://x?y'])
    assert.throws(() => at({ HF_ENDPOINT: endpoint }), { code: 'LPQ_USAGE', message: /HF_ENDPOINT/ }, endpoint);
  for (const [value, offline] of [
    ['1', true],
    ['true', true],
    ['ON', true],
    ['0', false],
    ['', false],
  ] as const)
    assert.equal(at({ HF_HUB_OFFLINE: value }).offline, offline);
  assert.equal(at({ TRANSFORMERS_OFFLINE: '1' }).offline, true);
  assert.throws(() => at({ HF_HUB_DOWNLOAD_TIMEOUT: 'soon' }), {
    code: 'LPQ_USAGE',
    message: /HF_HUB_DOWNLOAD_TIMEOUT/,
  });
  assert.throws(
    () => at({ HTTPS_PROXY: 'secret:password' }),
    (error: Error & { got?: string }) => {
      assert.doesNotMatch(error.message + error.got, /password/);
      return true;
    },
  );
});

test('the token: variable before file, never printed', (t) => {
  const home = scratch(t);
  const at = (env: Record<string, string>) => hubEnvironment({ HF_HOME: home, ...env }).token;
  assert.equal(at({}), undefined);
  writeFileSync(path.join(home, 'token'), 'hf_file\n');
  assert.equal(at({}), 'hf_file');
  assert.equal(at({ HF_TOKEN: ' hf_env\r\n' }), 'hf_env');
  assert.equal(at({ HUGGING_FACE_HUB_TOKEN: 'hf_old' }), 'hf_old');
  assert.equal(at({ HF_TOKEN: '' }), 'hf_file');
  assert.equal(at({ HF_HUB_DISABLE_IMPLICIT_TOKEN: '1', HF_TOKEN: 'hf_env' }), undefined);
  mkdirSync(path.join(home, 'other'));
  writeFileSync(path.join(home, 'other', 't'), 'hf_elsewhere');
  assert.equal(at({ HF_TOKEN_PATH: path.join(home, 'other', 't') }), 'hf_elsewhere');
  assert.throws(
    () => at({ HF_TOKEN: 'hf_se\ncret' }),
    (error: Error & { got?: string }) => {
      assert.match(error.message, /HF_TOKEN is malformed/);
      assert.doesNotMatch(error.message + error.got, /cret/);
      return true;
    },
  );
});

test('the files that are taken', () => {
  const { index, files } = selectFiles('a/b', [
    'config.json',
    'generation_config.json',
    'tokenizer.model',
    'vocab.json',
    'merges.txt',
    'chat_template.jinja',
    'additional_chat_templates/rag.jinja',
    'configuration_x.py',
    'LICENSE.md',
    'USE_POLICY.md',
    'recipe.yaml',
    'qwen.tiktoken',
    'model.safetensors',
    'model.fp16.safetensors',
    'pytorch_model.bin',
    'pytorch_model.bin.index.json',
    'flax_model.msgpack',
    'tf_model.h5',
    'model.gguf',
    'image.png',
    '.gitattributes',
    'gguf/config.json',
  ]);
  assert.equal(index, undefined);
  assert.deepEqual([...files].sort(), [
    'LICENSE.md',
    'USE_POLICY.md',
    'additional_chat_templates/rag.jinja',
    'chat_template.jinja',
    'config.json',
    'configuration_x.py',
    'generation_config.json',
    'merges.txt',
    'model.safetensors',
    'qwen.tiktoken',
    'recipe.yaml',
    'tokenizer.model',
    'vocab.json',
  ]);
  const all = new Set(['x-1.safetensors', 'x-2.safetensors']);
  const map = { weight_map: { a: 'x-2.safetensors', b: 'x-1.safetensors', c: 'x-2.safetensors' } };
  assert.deepEqual(shardsOf('a/b', 'i', JSON.stringify(map), all), [...all]);
  for (const text of ['', 'null', '[]', '{}', '{"weight_map":[]}', '{"weight_map":{}}', '{"weight_map":{"a":1}}'])
    assert.throws(() => shardsOf('a/b', 'i', text, all), { code: 'LPQ_SAFETENSORS_INDEX' }, text);
});
