import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { SPLITS } from '../../formats/gguf/pre-tokenizers.js';
import { openTokenizer } from '../../src/calibrate/tokenizer.js';
import { model as tinyLlama } from '../src/cli/lpq.js';
import { run } from './directories.js';
import { ENGINES } from './engines.js';
import { pythonOf } from './run.js';

/** llama.cpp's tokens of what lpq writes into GGUF, one by one beside lpq's own. LPQ_SMOLLM2 names a checkpoint of SmolLM2, which is one more. */

const found = pythonOf(ENGINES.find(({ driver }) => driver === 'drive_llama.py')!);
const skip = 'skip' in found && found.skip;

const TEXTS: Readonly<Record<string, string>> = {
  prose: "It's 1848; we'LL walk 12345 miles, won't we?  \"Yes,\" said Mrs. O'Neil -- and laughed...",
  code: 'def f(x: int) -> str:\n\tif x>=10_000:\n        return f"{x:,}"  # ok\n    \n\n}};//\t<a href="/x?y=1&z=%20">',
  emoji: 'ok 👍🏽 family 👨‍👩‍👧‍👦 flag 🇩🇪 heart ❤️ text ☺ 🤖🤖🤖end',
  chinese: '床前明月光，疑是地上霜。2026年11月的GPU價格是￥12,345.60元。日本語もカタカナ ｆｕｌｌ 한국어',
  crlf: 'first line\r\nsecond line\r\n\r\n  third\t line \r\n',
  signs: 'naïve café e\u0301 \u00a0nbsp\u200bzero Ω≈ç√ ½ ² ٣ Ⅷ \u2028separator עברית हिन्दी ไทย',
  spaces: ' \n \t\n   leading, trailing   \n\n\n',
};

const BYTE_LEVEL = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true };

/** Models of the bundled tokenizer's tokens, whose text is split in each way that lpq has llama.cpp's name for. */
function sources(dir: string): (readonly [name: string, from: string])[] {
  const split = Object.entries(SPLITS).map(([name, { patterns, words, ignoresMerges = false }]) => {
    const from = path.join(dir, name);
    cpSync(tinyLlama, from, { recursive: true });
    const file = path.join(from, 'tokenizer.json');
    const json = JSON.parse(readFileSync(file, 'utf8'));
    const parts = [
      ...patterns.map((Regex) => ({ type: 'Split', pattern: { Regex }, behavior: 'Isolated', invert: false })),
      { ...BYTE_LEVEL, use_regex: words === 'gpt-2' },
    ];
    const pre_tokenizer = { type: 'Sequence', pretokenizers: parts };
    const model = { ...json.model, ignore_merges: ignoresMerges };
    writeFileSync(file, JSON.stringify({ ...json, model, pre_tokenizer }));
    return [name, from] as const;
  });
  const smol = process.env.LPQ_SMOLLM2;
  return [['as bundled', tinyLlama], ...split, ...(smol && existsSync(smol) ? [['SmolLM2', smol] as const] : [])];
}

test('llama.cpp reads texts as the same tokens', { skip }, async (t) => {
  assert.ok('python' in found);
  const dir = mkdtempSync(path.join(tmpdir(), 'lpq-tokens-'));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  for (const [name, from] of sources(dir)) {
    const [quantized, packed] = [path.join(dir, `${name}.q`), path.join(dir, `${name}.gguf`)];
    await run('quantize', from, '-o', quantized, '--method', 'rtn', '--bits', '4', '--group-size', '32', '--no-report');
    await run('pack', quantized, '--target', 'gguf', '-o', packed);
    const encode = await openTokenizer(from);
    t.diagnostic(name);
    for (const [kind, input] of Object.entries(TEXTS)) {
      const program = path.join(path.dirname(found.python), '..', 'drive_llama');
      const ran = spawnSync(program, ['tokenize', path.join(packed, 'model.gguf')], { input });
      assert.equal(ran.status, 0, String(ran.stderr));
      assert.deepEqual(JSON.parse(String(ran.stdout)), [...(await encode(input))], `${name}: ${kind}`);
    }
  }
});
