import type { Architecture } from '../model/architecture.js';
import { knownArchitecture } from '../model/architectures/index.js';
import { isBeside, spellings } from '../model/named.js';
import { blockCount } from '../model/plan.js';
import { predictionRoot } from '../model/plan-prediction.js';
import { spelledFor } from '../model/respelled.js';

/** What the modules of a model are to the programs that load it, as far as its architecture's table is known. */
export interface ModelRoles {
  /** What the head is called where it has no tensor of its own: loaders build it all the same. */
  readonly head: string;
  /** Whether a module is the linear that makes logits. */
  isHead(name: string): boolean;
  /** Whether a module belongs to one of a block's routed experts. */
  isExpert(name: string): boolean;
  /** The model is one of more than text: programs have its modules below paths of their own. */
  readonly nested: boolean;
  /** A regular expression of a module as each program calls it; of one beside the language model (a tower, a projector) of all there. */
  pattern(name: string): string;
  /** What all names of the layer of multi-token prediction begin with to which a module belongs; undefined of any other. */
  prediction(name: string): string | undefined;
  /** The same for vLLM's name of such a module, if its path differs. */
  predictionElsewhere(name: string): string | undefined;
  /** Whether vLLM looks a module of such a layer up under another name, too; its pattern then has both. */
  aliased(name: string): boolean;
  /** The checkpoints of this architecture hold the experts of a block in one tensor, and its loaders know no other names. */
  readonly fusedExperts: boolean;
  /** They hold them in one tensor, and not every loader knows the names of single experts, too. */
  readonly storedFused: boolean;
}

/** By the model's config.json and tensors; of an architecture without a table by the names that most models give. */
export function rolesOf(config: Readonly<Record<string, unknown>>, tensors: Iterable<string>): ModelRoles {
  const known = knownArchitecture(config);
  const table = known && spelledFor(known, tensors);
  const name = table?.names.head ?? 'lm_head';
  const head = ending(name);
  const expert = table ? expertPattern(table) : /\.experts\.\d+\./;
  const blocks = table?.prediction ? blockCount(table, config, '') : 0;
  return {
    head: name,
    isHead: (module) => head.test(module),
    nested: table?.text !== undefined,
    pattern: (module) => {
      const names = table ? predictionNames(table, module, blocks) : [];
      if (names.length > 0) return anyOf(names);
      return table?.text ? nestedPattern(table, module, head) : anyOf([module]);
    },
    isExpert: (name) => expert?.test(name) ?? false,
    prediction: (module) => (table ? predictionRoot(table, module, blocks) : undefined),
    predictionElsewhere: (module) => (table ? vllmBlock(table, module, blocks)?.[1] : undefined),
    aliased: (module) => table !== undefined && predictionNames(table, module, blocks).length > 1,
    storedFused: table?.experts?.fused !== undefined && table.experts.named !== 'all',
    fusedExperts: table?.experts?.fused !== undefined && !table.experts.named,
  };
}

/** A module of a layer of multi-token prediction as its checkpoint and as vLLM call it; none of any other. */
function predictionNames(table: Architecture, module: string, blocks: number): string[] {
  const root = predictionRoot(table, module, blocks);
  if (root === undefined) return [];
  const moved = vllmBlock(table, module, blocks);
  if (moved) return [module, moved[1] + module.slice(moved[0].length)];
  const alias = table.prediction?.aliases[module.slice(root.length)];
  return alias === undefined ? [module] : [module, root + alias];
}

/** The prefix of the block of such a layer that has a module, and that of vLLM's; undefined where they are the same. */
function vllmBlock({ prediction }: Architecture, module: string, blocks: number): [string, string] | undefined {
  if (prediction?.vllmBlock === undefined) return undefined;
  const [before = '', after = ''] = prediction.block.split('{layer}');
  if (!module.startsWith(before)) return undefined;
  const index = module.slice(before.length).split('.', 1)[0] as string;
  const own = before + index + after;
  if (!/^\d+$/.test(index) || !module.startsWith(own)) return undefined;
  return [own, prediction.vllmBlock.replace('{layer}', String(blocks + Number(index)))];
}

function anyOf(names: readonly string[]): string {
  const all = names.map(escaped);
  return all.length > 1 ? `^(${all.join('|')})$` : `^${all[0]}$`;
}

/** transformers 5 moves what published checkpoints have at the top below 'model.'. */
function nestedPattern(table: Architecture, module: string, head: RegExp): string {
  if (head.test(module)) return `^(.*\\.)?${escaped(table.names.head)}$`;
  if (isBeside(table, module))
    return `^(model\\.)?${escaped(module.replace(/^model\./, '').split('.')[0] as string)}\\.`;
  return anyOf(spellings(table, module));
}

function expertPattern({ experts }: Architecture): RegExp | undefined {
  if (!experts) return undefined;
  const { gate, up, down } = experts.names;
  const parts = [gate ?? up, up, down].map((name) => escaped(name).replace('\\{expert\\}', '\\d+'));
  return new RegExp(`(^|\\.)(${parts.join('|')})$`);
}

/** A path or what stands below another prefix: language_model.lm_head of a model of more than text. */
function ending(path: string): RegExp {
  return new RegExp(`(^|\\.)${escaped(path)}$`);
}

/** A regular expression that matches this text alone. */
export function escaped(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
}
