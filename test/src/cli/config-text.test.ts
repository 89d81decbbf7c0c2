import assert from 'node:assert/strict';
import { cpSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { lpq, model, scratch } from './lpq.js';

/** Numbers that JSON.parse and JSON.stringify do not give back, indented by a tab. */
function oddSource(dir: string): { source: string; text: string } {
  const source = path.join(dir, 'source');
  cpSync(model, source, { recursive: true });
  const members = Object.entries(JSON.parse(readFileSync(path.join(model, 'config.json'), 'utf8')))
    .filter(([key]) => key !== 'rms_norm_eps')
    .map(([key, value]) => `\t${JSON.stringify(key)}: ${JSON.stringify(value)}`);
  const odd = [
    '"rms_norm_eps": 1e-5',
    '"router_jitter_noise": 0.0',
    '"final_logit_softcapping_of_others": 30.0',
    '"huge": 18446744073709551615',
    '"text_of_others": {"beta": 1.0, "alpha": 1E2}',
  ];
  const text = `{\n${[...odd.map((line) => `\t${line}`), ...members].join(',\n')}\n}`;
  writeFileSync(path.join(source, 'config.json'), text);
  writeFileSync(path.join(source, 'generation_config.json'), '{"temperature": 1.0, "top_p": 1e0}');
  return { source, text };
}

test('what lpq does not change of a JSON file keeps its bytes in every output: checkpoints, artifacts, GGUF, merged shards, redone runs', async (t) => {
  const dir = scratch(t);
  const { source, text } = oddSource(dir);
  const run = async (...args: string[]) => {
    const ran = await lpq([...args, '--quiet']);
    assert.equal(ran.code, 0, ran.stderr);
  };
  const at = (name: string) => path.join(dir, name);
  const open = text.slice(0, -'\n}'.length);
  const kept = (name: string, quantized = true) => {
    const written = readFileSync(path.join(at(name), 'config.json'), 'utf8');
    if (!quantized) assert.equal(written, text, name);
    else {
      assert.ok(written.startsWith(`${open},\n\t"quantization_config": {\n\t\t"`), `${name}: ${written}`);
      assert.ok(written.endsWith('\n\t}\n}'), name);
    }
    for (const file of readdirSync(source))
      if (file.endsWith('.json') && file !== 'config.json')
        assert.deepEqual(readFileSync(path.join(at(name), file)), readFileSync(path.join(source, file)), file);
  };

  const rtn = ['--bits', '4', '--method', 'rtn', '--no-report'];
  await run('quantize', source, '-o', at('q'), ...rtn);
  kept('q');
  for (const target of ['gptq', 'awq', 'compressed-tensors', 'marlin', 'gguf']) {
    await run('pack', at('q'), '--target', target, '-o', at(target));
    kept(target, target !== 'gguf');
    await run('verify', at(target), '--against', at('q'));
  }
  // Without its manifest it is as another tool's: settings are replaced where they stand.
  rmSync(path.join(at('gptq'), 'lpq.json'));
  await run('pack', at('gptq'), '--target', 'compressed-tensors', '-o', at('again'));
  kept('again');

  for (const shard of ['0/2', '1/2']) await run('quantize', source, '-o', at('m'), ...rtn, '--shard', shard);
  await run('merge', at('m'));
  kept('m');
  for (const shard of ['0/2', '1/2']) await run('pack', at('m'), '--target', 'awq', '-o', at('p'), '--shard', shard);
  await run('merge', at('p'));
  kept('p');
  await run('quantize', source, '-o', at('redone'), ...rtn, '--redo', 'down_proj', '--from', at('q'));
  kept('redone');
});
