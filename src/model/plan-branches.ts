import type { Architecture } from './architecture.js';
import { type Config, keyOf, type Setting, settingNumber } from './config.js';
import type { RecurrentPlan } from './mixers/plan.js';
import type { RecurrentTable } from './mixers/table.js';
import type { BlockPlan, NormMaker } from './plan.js';
import { type AttentionPlan, attentionPlanner, type BlockParts } from './plan-attention.js';
import { type CompressedPlan, compressedPlanner } from './plan-compressed.js';
import { type ExpertsPlan, expertsPlan } from './plan-experts.js';
import { expertsApart } from './plan-experts-apart.js';
import { type MlaPlan, mlaPlanner } from './plan-mla.js';
import { type Activation, type MlpPlan, mlpPlan } from './plan-mlp.js';
import { readsAnother } from './plan-sharing.js';
import type { MlpTable } from './tables/mlp.js';
import type { SingleBranch } from './tables/names.js';

/** Attention of a part: of queries, keys and values, through latent vectors, or over compressed entries. */
export function attentionOf(
  config: Config,
  part: Architecture,
  hidden: number,
  norm: NormMaker,
): (parts: BlockParts) => AttentionPlan | MlaPlan | CompressedPlan {
  if (part.compressed) return compressedPlanner(config, part.compressed, hidden, norm);
  return part.mla ? mlaPlanner(config, part.mla, hidden, norm) : attentionPlanner(config, part, hidden, norm);
}

/** The table of each block that a layer consists of: its own names, experts in the first one. */
export function partTables(table: Architecture): readonly Architecture[] {
  const { experts, ...rest } = table;
  return Array.from(
    { length: table.parts ?? 1 },
    (_, part): Architecture => withPart(part === 0 ? table : (rest as Architecture), String(part)),
  );
}

function withPart<T>(value: T, part: string): T {
  if (typeof value === 'string') return value.replace('{part}', part) as T;
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, withPart(inner, part)])) as T;
}

export function shortcutOf(part: number, parts: number): NonNullable<BlockPlan['shortcut']> {
  if (part === 0) return 'from';
  return part === parts - 1 ? 'into' : 'over';
}

export function withNorm(table: MlpTable, norm: string | undefined): MlpTable {
  return { ...table, names: { ...table.names, norm } } as MlpTable;
}

export function withNorms(table: MlpTable, norms: RecurrentTable['mlp']): MlpTable {
  if (!norms) return table;
  return { ...table, names: { ...table.names, norm: norms.norm, postNorm: norms.postNorm } } as MlpTable;
}

/** Attention or the recurrent layer of a block, or both with multipliers of their own. */
export function mixersOf(
  config: Config,
  { recurrent, residual }: Architecture,
  mixer: RecurrentPlan | undefined,
  attention: BlockPlan['attention'],
): Pick<BlockPlan, 'attention' | 'beside'> {
  if (!mixer) return { attention };
  if (!recurrent?.blocks.beside) return { attention: mixer };
  const { attention: own = 1, recurrent: its = 1 } = residual?.mixers ?? {};
  return {
    attention: { ...attention, multiplier: attention.multiplier * settingNumber(config, own) },
    beside: { ...mixer, multiplier: mixer.multiplier * settingNumber(config, its) },
  };
}

/** Which branch a block of one has; that of a recurrent layer counts as attention. Throws LPQ_CONFIG. */
export function branchOf(
  config: Config,
  single: SingleBranch,
  mixer: RecurrentPlan | undefined,
  index: number,
  layers: number,
): keyof SingleBranch {
  if (mixer) return 'attention';
  const type = config.list('layer_types', 'string')[index] ?? '';
  const kind = (['attention', 'mlp', 'experts'] as const).find((each) => single[each].includes(type));
  if (kind) return kind;
  const known = Object.values(single).flat().join(', ');
  throw config.error('layer_types', `does not say what block ${index} is`, type, `${layers} entries, each ${known}`);
}

interface MlpFacts {
  readonly table: Architecture;
  /** Of the block, where a layer has several. */
  readonly own: Architecture;
  readonly hidden: number;
  readonly norm: NormMaker;
  readonly multiplier: number;
  readonly activation: Activation | 'xielu';
  readonly sparse: boolean;
  readonly layer: number;
}

/** The MLP or the experts of a block. Throws LPQ_CONFIG. */
export function mlpOf(config: Config, facts: MlpFacts, mlp: MlpTable, block: BlockParts): MlpPlan | ExpertsPlan {
  const { table, own, hidden, norm, multiplier, activation, sparse, layer: index } = facts;
  const { prefix, layers } = block;
  const shares = readsAnother(config, table.attention, block.index, layers);
  if (shares && sparse && config.flag(table.mlp.doubledShared ?? false))
    throw config.error(
      keyOf(table.mlp.doubledShared as Setting<boolean>),
      'is not known to lpq beside experts',
      true,
      false,
    );
  const rule = sparse ? own.experts : undefined;
  if (!rule) return mlpPlan(config, mlp, hidden, activation, { ...block, shares });
  const apart = expertsApart(rule, prefix, norm, table.mlp.names.postNorm);
  const place = { prefix, index, multiplier };
  const experts = expertsPlan(
    config,
    rule,
    place,
    hidden,
    norm(`${prefix}${own.mlp.names.norm}`),
    activation as Activation,
  );
  return { ...experts, ...(apart && { apart }) };
}
