import assert from 'node:assert/strict';
import test from 'node:test';
import { fromTyped, typed } from '../../../native/binding.js';
import { expertSource } from '../../../src/model/fused-experts.js';
import { openModel } from '../../../src/model/graph.js';
import { demanded, shapesOnly } from './fixtures.js';

const [EXPERTS, HIDDEN, INNER] = [3, 8, 6];
const config = {
  model_type: 'qwen3_vl_moe',
  text_config: {
    vocab_size: 10,
    hidden_size: HIDDEN,
    num_hidden_layers: 1,
    num_attention_heads: 2,
    num_key_value_heads: 1,
    head_dim: 4,
    moe_intermediate_size: INNER,
    intermediate_size: INNER,
    num_experts: EXPERTS,
    num_experts_per_tok: 2,
    max_position_embeddings: 16,
  },
};
const block = 'model.language_model.layers.0.mlp.experts.';

/** Element (n, k) of an expert's linear: a number that no other has. */
const element = (part: number, expert: number, n: number, k: number) => ((part * 10 + expert) * 10 + n) * 10 + k;

/** Tensors of all experts, filled in plain loops over the dimensions that they are stored in. */
function stored(turned: { readonly gateUp: boolean; readonly down: boolean }) {
  const fill = (shape: readonly [number, number, number], value: (e: number, i: number, j: number) => number) =>
    [
      shape,
      Float32Array.from({ length: shape[0] * shape[1] * shape[2] }, (_, at) => {
        const j = at % shape[2];
        const i = Math.floor(at / shape[2]) % shape[1];
        return value(Math.floor(at / shape[2] / shape[1]), i, j);
      }),
    ] as const;
  const gateUp = (e: number, row: number, k: number) => element(row < INNER ? 0 : 1, e, row % INNER, k);
  const down = (e: number, n: number, k: number) => element(2, e, n, k);
  return new Map([
    [
      `${block}gate_up_proj`,
      turned.gateUp
        ? fill([EXPERTS, HIDDEN, 2 * INNER], (e, k, row) => gateUp(e, row, k))
        : fill([EXPERTS, 2 * INNER, HIDDEN], gateUp),
    ],
    [
      `${block}down_proj`,
      turned.down ? fill([EXPERTS, INNER, HIDDEN], (e, k, n) => down(e, n, k)) : fill([EXPERTS, HIDDEN, INNER], down),
    ],
  ]);
}

for (const gateUp of [false, true])
  for (const down of [false, true])
    test(`experts stored ${gateUp ? '[E, in, out]' : '[E, out, in]'}, down ${down ? '[E, in, out]' : '[E, out, in]'}: each is read as it is`, async () => {
      const fused = stored({ gateUp, down });
      const others = [...demanded(config)].filter(([name]) => !name.includes('.experts.'));
      const shapes = new Map([...others, ...[...fused].map(([name, [shape]]) => [name, shape] as const)]);
      const source = {
        ...shapesOnly(config, shapes),
        tensor: async (name: string) => {
          const [shape, data] = fused.get(name)!;
          return fromTyped('f32', shape, data);
        },
      };
      openModel(source);
      const view = expertSource(source);
      for (let e = 0; e < EXPERTS; e++)
        for (const [part, name, n, k] of [
          [0, 'gate_proj', INNER, HIDDEN],
          [1, 'up_proj', INNER, HIDDEN],
          [2, 'down_proj', HIDDEN, INNER],
        ] as const) {
          const tensor = await view.tensor(`${block}${e}.${name}.weight`);
          assert.deepEqual(tensor.shape, [n, k]);
          const want = Float32Array.from({ length: n * k }, (_, at) => element(part, e, Math.floor(at / k), at % k));
          assert.deepEqual(typed(tensor), want);
        }
    });
