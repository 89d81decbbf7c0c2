import { existsSync } from 'node:fs';
import path from 'node:path';
import { SafetensorsFile } from '../safetensors/read.js';
import { type AdapterConfig, badAdapter, readAdapterConfig, Scaling, targets } from './config.js';
import type { Merge } from './directory.js';

/** What is asked of the base model. */
export interface BaseTensors {
  names(): Iterable<string>;
  has(name: string): boolean;
  shape(name: string): readonly number[];
}

/** What becomes of one tensor of the base model. Matrices as they are stored. */
export type Edit =
  | {
      readonly kind: 'delta';
      /** Tensors of the adapter: A [r, K] and B [N, r]; of an embedding A [r, rows] and B [columns, r]. */
      readonly a: string;
      readonly b: string;
      readonly factor: number;
      /** The base stores the transpose of B A. */
      readonly turned: boolean;
      /** DoRA's lengths of rows [N] (arXiv 2402.09353). */
      readonly magnitude: string | undefined;
    }
  | { readonly kind: 'replace'; readonly from: string };

interface Parts {
  a?: string;
  b?: string;
  magnitude?: string;
  embedding?: true;
}

const PREFIX = 'base_model.model.';
const LORA = /^(.*)\.lora_(A|B|embedding_A|embedding_B|magnitude_vector)(?:\.default)?(?:\.weight)?$/;

/** A LoRA of PEFT, read against the model that it is for. */
export class Adapter {
  private constructor(
    readonly dir: string,
    readonly config: AdapterConfig,
    readonly file: SafetensorsFile,
    /** By tensor of the base model. */
    readonly edits: ReadonlyMap<string, Edit>,
  ) {}

  /**
   * Throws LPQ_LORA where names or shapes do not fit the base, LPQ_SAFETENSORS, LPQ_FILE.
   */
  static open(dir: string, base: BaseTensors, about: Merge): Adapter {
    const config = readAdapterConfig(dir);
    const place = path.join(dir, 'adapter_model.safetensors');
    if (!existsSync(place))
      badAdapter(dir, 'there is no adapter_model.safetensors', {
        ...(existsSync(path.join(dir, 'adapter_model.bin')) && {
          got: 'adapter_model.bin',
          hint: 'lpq opens no pickles: load the adapter with PEFT and save it again (safe_serialization=True).',
        }),
      });
    const file = SafetensorsFile.open(place);
    try {
      return new Adapter(dir, config, file, editsOf(dir, config, file, base, about));
    } catch (error) {
      file.close();
      throw error;
    }
  }

  close(): void {
    this.file.close();
  }
}

function editsOf(
  dir: string,
  config: AdapterConfig,
  file: SafetensorsFile,
  base: BaseTensors,
  { transposed, tied }: Merge,
): Map<string, Edit> {
  const modules = new Map<string, Parts>();
  const edits = new Map<string, Edit>();
  const find = finder(dir, base);
  for (const name of file.names()) {
    if (!name.startsWith(PREFIX)) badAdapter(dir, `'${name}' is not a tensor of a LoRA`, { expected: `${PREFIX}...` });
    const inner = name.slice(PREFIX.length);
    const [, module, part] = LORA.exec(inner) ?? [];
    if (module !== undefined) {
      const parts = modules.get(module) ?? {};
      modules.set(module, parts);
      if (part === 'magnitude_vector') parts.magnitude = name;
      else parts[part?.endsWith('A') ? 'a' : 'b'] = name;
      if (part?.startsWith('embedding')) parts.embedding = true;
      continue;
    }
    // Modules that were trained whole, and biases.
    const target = inner.replace(/\.modules_to_save(\.default)?\./, '.').replace(/\.base_layer\./, '.');
    edits.set(find(target, name), { kind: 'replace', from: name });
  }
  const scaling = new Scaling(dir, config);
  const named = targets(dir, config);
  for (const [module, parts] of modules) {
    if (!named(module))
      badAdapter(dir, `it holds '${module}', which its target_modules do not name`, { got: config.target_modules });
    const { a, b, magnitude, embedding } = parts;
    if (a === undefined || b === undefined)
      badAdapter(dir, `'${module}' has ${a === undefined ? 'B without A' : b === undefined ? 'A without B' : ''}`);
    if (config.use_dora !== (magnitude !== undefined))
      badAdapter(dir, `'${module}' has ${magnitude ? 'a' : 'no'} magnitude, and use_dora is ${config.use_dora}`);
    const rank = file.shape(a)[0];
    if (rank !== scaling.rank(module) || file.shape(b)[1] !== rank)
      badAdapter(dir, `'${module}' does not have the rank of its settings`, {
        got: `A [${file.shape(a)}], B [${file.shape(b)}]`,
        expected: `rank ${scaling.rank(module)}`,
      });
    const target = find(`${module}.weight`, a);
    if (edits.has(target)) badAdapter(dir, `'${target}' is adapted and replaced`);
    const turned = embedding ? true : transposed.has(target);
    edits.set(target, { kind: 'delta', a, b, factor: scaling.factor(module), turned, magnitude });
  }
  if (edits.size === 0) badAdapter(dir, 'it holds nothing');
  if (tied !== undefined && edits.has(tied) && config.ensure_weight_tying !== true)
    badAdapter(dir, `it changes '${tied}', which is also the head of this model`, {
      hint: 'Merge it with PEFT, and untie the head there (tie_word_embeddings).',
    });
  for (const [target, edit] of edits) requireShapes(dir, file, base.shape(target), target, edit);
  return edits;
}

/** The tensor of the base that a name of the adapter means: that one, or the only one that ends so. */
function finder(dir: string, base: BaseTensors): (target: string, from: string) => string {
  const all = [...base.names()];
  return (target, from) => {
    if (base.has(target)) return target;
    const alike = all.filter((name) => name.endsWith(`.${target}`));
    if (alike.length === 1) return alike[0] as string;
    return badAdapter(dir, `the model has no '${target}'${alike.length > 1 ? ', but several that end so' : ''}`, {
      got: from,
      ...(alike.length > 1 && { expected: alike.slice(0, 4).join(', ') }),
      hint: 'Give the model that the adapter was trained on; merge linears that share a tensor, such as experts, with PEFT.',
    });
  };
}

function requireShapes(dir: string, file: SafetensorsFile, shape: readonly number[], target: string, edit: Edit): void {
  const check = (what: string, got: readonly number[], expected: readonly number[]) => {
    if (`${got}` !== `${expected}`)
      badAdapter(dir, `${what} of '${target}' does not fit the model`, {
        got: `[${got}]`,
        expected: `[${expected}]`,
        hint: 'Give the model that the adapter was trained on; if its vocabulary was enlarged, save the model with it first.',
      });
  };
  if (edit.kind === 'replace') {
    check('what takes the place', file.shape(edit.from), shape);
    return;
  }
  const [n, k] = edit.turned ? [shape[1], shape[0]] : [shape[0], shape[1]];
  const [r = 0] = file.shape(edit.a);
  check('A', file.shape(edit.a), [r, k as number]);
  check('B', file.shape(edit.b), [n as number, r]);
  if (edit.magnitude === undefined) return;
  if (/lora_embedding/.test(edit.a))
    badAdapter(dir, `'${target}' is an embedding with DoRA`, { hint: 'Merge it with PEFT.' });
  const flat = file.shape(edit.magnitude).filter((size) => size !== 1);
  check('the magnitude', flat, [n as number]);
}
