import type { PartName } from '../../formats/gguf/architectures/parts.js';
import { GgufModelFile } from '../../formats/gguf/source/file.js';
import { ggufSourceModel } from '../../formats/gguf/source/model.js';
import { typed } from '../../native/binding.js';
import { LpqError } from '../core/error.js';
import { architectureOf } from '../model/architectures/index.js';
import { type ModelPlan, planModel } from '../model/plan.js';
import { spelledFor } from '../model/respelled.js';
import type { GgufContext } from './gguf-context.js';
import { expectedRope } from './gguf-tables.js';

/** Tensors that scale positions hold what config.json says. */
export function checkRope({ recorder, file, model }: GgufContext): void {
  for (const [tensor, factors] of expectedRope(model)) {
    if (!file.has(tensor)) continue;
    const stored = file.tensor(tensor);
    const found = stored.dtype === 'f32' ? typed<Float32Array>(stored) : new Float32Array();
    // Two orders of the same few products and powers in doubles part by some units of 2^-53, and may round to neighbours.
    const near = (exact: number): number[] => [1 - 2 ** -45, 1 + 2 ** -45].map((off) => Math.fround(exact * off));
    const at = factors.findIndex((exact, i) => !near(exact).includes(found[i] as number));
    const numbers = { got: found[at] ?? 'nothing', expected: factors[at] ?? 0 };
    const message = `${tensor}[${at}] does not match config.json`;
    recorder.check(at < 0, { check: 'config', tensor, ...numbers, message });
    stored.dispose();
  }
}

/** The metadata, read as lpq reads any file of GGUF, is the model of config.json: number by number, name by name. */
export function checkModel({ recorder, model }: GgufContext, path: string): void {
  const file = GgufModelFile.open([path]);
  try {
    const { config } = ggufSourceModel(file);
    const { spelled } = model.usual;
    const as = spelled && spelled.block === model.names.block ? [spelled.has] : [];
    const plan = planModel(spelledFor(architectureOf(config, path), as), config, path);
    const [where, got, expected] = difference(seen(model), plan, '', plainNames(model)) ?? [];
    recorder.check(where === undefined, {
      ...{ check: 'config', got: String(got), expected: String(expected) },
      message: `${path} is not the model of config.json when it is read: ${where}`,
    });
  } catch (error) {
    if (!(error instanceof LpqError)) throw error;
    const message = `${path} cannot be read: ${error.message}`;
    recorder.check(false, { check: 'config', message });
  } finally {
    file.close();
  }
}

/** The plan as llama.cpp sees it: without windows where it knows none, which the packer tells. */
function seen({ plan, computes }: GgufContext['model']): ModelPlan {
  if (computes.reads?.includes('windows')) return plan;
  const blocks = plan.blocks.map((block) =>
    block.attention.kind === 'attention' ? { ...block, attention: { ...block.attention, window: 0 } } : block,
  );
  return { ...plan, blocks };
}

/** Fields that a file says in tensors, which are compared by themselves, or that nothing computes with. */
const ELSEWHERE = /\.scaling\.(low|high|original|longAttention|truncate)$|\.predictions|\.core\.least$|^architecture$/;

/** How the class of the language model calls what this checkpoint has under another path. */
function plainNames({ names, usual }: GgufContext['model']): (name: string) => string {
  const outer = new Map(Object.entries(names.outer).map(([part, to]) => [stem(to), stem(usual.outer[part] ?? '')]));
  return (name) => {
    if (name.startsWith(`${names.blocks}.`)) return usual.blocks + name.slice(names.blocks.length);
    const [, path = name, suffix = ''] = /^(.*?)(\.(?:weight|bias))?$/.exec(name) ?? [];
    const [, stack, slice = ''] = /^(.*\.)(\d+)$/.exec(path) ?? [];
    const stacked = stack && outer.get(`${stack}{expert}`)?.replace('{expert}', slice);
    return (stacked ?? outer.get(path) ?? path) + suffix;
  };
}

const stem = (entry: PartName | string): string =>
  (typeof entry === 'string' ? entry : entry.to).replace(/\.(weight|bias)$/, '');

/** Where two plans differ, and how. Numbers went through f32, and some through a product or a quotient more. */
function difference(
  a: unknown,
  b: unknown,
  at: string,
  plain: (name: string) => string,
): [string, unknown, unknown] | undefined {
  if (a === b) return undefined;
  if (typeof a === 'number' && typeof b === 'number') {
    const same = Math.abs(a - b) <= 4 * 2 ** -24 * Math.abs(a);
    return same ? undefined : [at, b, a];
  }
  if (typeof a !== 'object' || typeof b !== 'object' || a === null || b === null)
    return typeof a === 'string' && plain(a) === b ? undefined : [at, b, a];
  const keys = new Set([...Object.keys(a), ...Object.keys(b)]);
  for (const key of keys) {
    const place = at === '' ? key : `${at}.${key}`;
    if (ELSEWHERE.test(place)) continue;
    const [own, other] = [a, b].map((each) => (each as Record<string, unknown>)[key]);
    const found = difference(own, other, place, plain);
    if (found) return found;
  }
  return undefined;
}
