import { awqModules } from '../awq/modules.js';
import { badSetting, type ForeignContext, type ForeignModules } from '../foreign/module.js';
import { gptqModules } from '../gptq/modules.js';

type Settings = Readonly<Record<string, unknown>>;

/** Whose tensors AutoRound's packing formats are, and the settings that say so in that format's terms. */
const PACKINGS: Readonly<
  Record<string, { read(ctx: ForeignContext): ForeignModules; settings(where: string, own: Settings): Settings }>
> = {
  'auto_round:auto_gptq': {
    read: gptqModules,
    settings: (where, { bits, group_size, sym = true, extra_config }) => ({
      ...{ quant_method: 'gptq', checkpoint_format: 'gptq', desc_act: false, bits, group_size, sym },
      dynamic: dynamicOf(where, extra_config),
    }),
  },
  'auto_round:auto_awq': {
    read: awqModules,
    settings: (where, { bits, group_size, extra_config }) => {
      for (const [name, change] of Object.entries(dynamicOf(where, extra_config)))
        if ((change.bits ?? bits) !== bits || (change.group_size ?? group_size) !== group_size)
          return badSetting(where, 'extra_config', name, 'modules of one kind, because AWQ has no others');
      return { quant_method: 'awq', version: 'gemm', zero_point: true, bits, group_size };
    },
  },
};

/** Widths from which on AutoRound leaves a module in floats. */
const FLOATS = 16;

/**
 * Modules of a checkpoint that AutoRound saved in its own format (quant_method auto-round): the tensors of GPTQ, zero points stored minus
 * one, or of AWQ; extra_config has modules of other bits, groups or signs. Throws LPQ_CONFIG for packings that are neither.
 */
export function autoRoundModules(ctx: ForeignContext): ForeignModules {
  const { packing_format: named = 'auto_round:auto_gptq', data_type: type = 'int' } = ctx.settings;
  const packing =
    typeof named === 'string' ? PACKINGS[named.replace(/^auto_gptq$|^auto_awq$/, 'auto_round:$&')] : undefined;
  if (type !== 'int') return badSetting(ctx.where, 'data_type', type, 'int');
  if (!packing) return badSetting(ctx.where, 'packing_format', named, Object.keys(PACKINGS).join(', '));
  return packing.read({ ...ctx, settings: packing.settings(ctx.where, ctx.settings) });
}

/** extra_config as rules of GPTQ's `dynamic`: its keys are names, or regular expressions of whole names. */
function dynamicOf(where: string, extra: unknown): Record<string, Settings> {
  if (extra === undefined || extra === null) return {};
  if (typeof extra !== 'object' || Array.isArray(extra)) return badSetting(where, 'extra_config', extra, 'an object');
  const rules: Record<string, Settings> = {};
  for (const [key, change] of Object.entries(extra)) {
    if (typeof change !== 'object' || change === null)
      return badSetting(where, `extra_config of '${key}'`, change, 'an object');
    const { bits, group_size, sym } = change as Settings;
    const pattern = /^[\w.-]+$/.test(key) ? `^${key.replace(/[.-]/g, '\\$&')}$` : `(?:${key})$`;
    if (typeof bits === 'number' && bits >= FLOATS) continue;
    rules[`+:${pattern}`] = Object.fromEntries(
      Object.entries({ bits, group_size, sym }).filter(([, value]) => value !== undefined && value !== null),
    );
  }
  return rules;
}
