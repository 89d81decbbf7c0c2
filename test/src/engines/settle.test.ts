import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { LpqError } from '../../../src/core/error.js';
import { ENGINES, engineNamed } from '../../../src/engines/index.js';
import { engineTarget, firstEngine, settle } from '../../../src/engines/settle.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';

const dense = { dtype: 'bfloat16', experts: 'none' } as const;
const engine = (name: string) => engineNamed(name, true);
const refusal = (work: () => unknown): LpqError => {
  try {
    work();
  } catch (error) {
    return error as LpqError;
  }
  throw new Error('nothing was refused');
};

test('what is left open is settled by the engine', () => {
  const vllm = settle(engine('vllm'), { bits: 4 }, dense);
  assert.deepEqual(
    [vllm.form.target, vllm.scaleDtype, vllm.positiveScales, vllm.groupSize],
    ['compressed-tensors', 'bf16', true, undefined],
  );
  assert.equal(settle(engine('vllm'), { bits: 4 }, { ...dense, dtype: 'float16' }).scaleDtype, undefined);
  assert.equal(settle(engine('vllm'), { bits: 4, scaleDtype: 'f32' }, dense).scaleDtype, undefined);
  assert.equal(settle(engine('vllm'), { bits: 4, symmetric: false }, dense).form.target, 'awq');
  assert.equal(settle(engine('vllm'), { dtype: 'f8e4m3' }, dense).positiveScales, false);
  assert.equal(settle(engine('lmdeploy'), { bits: 4 }, dense).groupSize, 128);
  assert.equal(settle(engine('llama.cpp'), { bits: 8 }, dense).scaleDtype, undefined);
});

test('every engine takes its own examples, and refuses what it does not read with one of them', () => {
  for (const each of ENGINES.filter(({ forms }) => forms.length > 0))
    for (const { options } of each.forms) {
      const bits = /--bits (\d)/.exec(options)?.[1];
      const dtype = /--dtype (\S+)/.exec(options)?.[1];
      const wish = { bits: bits && Number(bits), dtype, symmetric: !options.includes('--asym') } as const;
      settle(each, { ...wish, bits: wish.bits || undefined }, { ...dense, inputScales: true });
    }
  const narrow = refusal(() => settle(engine('vllm'), { bits: 3 }, dense));
  assert.equal(narrow.code, 'LPQ_ENGINE');
  assert.match(narrow.message, /vLLM .* does not read the type/);
  assert.match(narrow.hint ?? '', /--bits 4\./);
  assert.match(refusal(() => settle(engine('vllm'), { dtype: 'f6e3m2' }, dense)).hint ?? '', /--dtype f8e4m3/);
  assert.match(refusal(() => settle(engine('vllm'), { bits: 8, symmetric: false }, dense)).hint ?? '', /--bits/);
  assert.match(
    refusal(() => settle(engine('lmdeploy'), { bits: 4, groupSize: 64 }, dense)).hint ?? '',
    /--group-size 128/,
  );
});

test('experts that an engine would leave at random are refused', () => {
  const fused = { ...dense, experts: 'fused' } as const;
  const single = { ...dense, experts: 'single' } as const;
  assert.match(refusal(() => settle(engine('transformers'), { bits: 4 }, fused)).message, /one tensor per block/);
  assert.match(
    refusal(() => settle(engine('transformers'), { bits: 4, symmetric: false }, single)).message,
    /zero points of experts/,
  );
  settle(engine('transformers'), { bits: 4 }, single);
  settle(engine('vllm'), { bits: 4 }, fused);
});

test('modules of a checkpoint decide the target, and must agree on it', () => {
  const int4 = schemeFromOptions({ bits: 4, groupSize: 64 });
  const awq = schemeFromOptions({ bits: 4, groupSize: 64, asym: true });
  assert.equal(engineTarget(engine('vllm'), new Map([['a', int4]]), dense), 'compressed-tensors');
  const mixed = refusal(() =>
    engineTarget(
      engine('vllm'),
      new Map([
        ['a', int4],
        ['b', awq],
      ]),
      dense,
    ),
  );
  assert.match(mixed.message, /'a' and 'b' in different formats/);
  const odd = refusal(() =>
    engineTarget(engine('vllm'), new Map([['m.down', schemeFromOptions({ bits: 4, groupSize: 96 })]]), dense),
  );
  assert.match(`${odd.message} ${odd.got}`, /groups of 96.*m\.down/);
  assert.match(refusal(() => engineTarget(engine('vllm'), new Map(), dense)).message, /no module/);
});

test('calibrated inputs decide the target of NVFP4, and some engines read no other', () => {
  const modules = new Map([['a', schemeFromOptions({ dtype: 'nvfp4' })]]);
  assert.equal(engineTarget(engine('vllm'), modules, dense), 'compressed-tensors');
  assert.equal(engineTarget(engine('vllm'), modules, { ...dense, inputScales: true }), 'compressed-tensors-w4a4');
  assert.equal(engineTarget(engine('tensorrt-llm'), modules, { ...dense, inputScales: true }), 'modelopt');
  const plain = refusal(() => engineTarget(engine('tensorrt-llm'), modules, dense));
  assert.deepEqual([plain.code, plain.hint], ['LPQ_ENGINE', 'Quantize with --input-scales.']);
});

test('engines by name: slips, other words, and those of which nothing was made sure', () => {
  assert.match(refusal(() => engineNamed('vlm', false)).hint ?? '', /Did you mean vllm/);
  assert.match(refusal(() => engineNamed('ollama', false)).hint ?? '', /--for llama\.cpp/);
  assert.match(refusal(() => engineNamed('sglang', false)).hint ?? '', /--untested/);
  assert.equal(engineNamed('sglang', true).title, 'SGLang');
  assert.match(refusal(() => engineNamed('tensorrt-llm', false)).hint ?? '', /--untested/);
});

test('the first engine that reads all types is named, one that nobody ran never', () => {
  const first = (...options: Parameters<typeof schemeFromOptions>[0][]) =>
    firstEngine(
      ENGINES,
      options.map((each) => schemeFromOptions(each)),
    )?.name;
  assert.equal(first({ bits: 4 }), 'vllm');
  assert.equal(first({ bits: 3 }), 'transformers');
  assert.equal(first({ bits: 4 }, { bits: 3 }), 'transformers');
  assert.equal(first({ bits: 5, asym: true, groupSize: '32' }), 'transformers');
  assert.equal(first({ dtype: 'f6e3m2' }), 'vllm+lpq');
});
