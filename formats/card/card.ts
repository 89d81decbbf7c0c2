import { createHash } from 'node:crypto';
import { z } from 'zod';
import { bitsOfModule } from '../canonical/bits.js';
import { knowsSource } from '../canonical/same-source.js';
import type { CanonicalModule, Provenance, Quality } from '../canonical/schema.js';
import { printHead } from './head.js';

/** What a card says that no manifest does: of a packed directory, from the quantized checkpoint and its target. */
export const cardFactsSchema = z.strictObject({
  /** Commands that serve it; DIR stands for the directory, or its name on the Hub. */
  serve: z.array(z.string()),
  /** Mean over the modules of the error that the quantizer measured, by number of weights; null where it measured none. */
  relativeError: z.number().nullable(),
});
export type CardFacts = z.infer<typeof cardFactsSchema>;

/** A module, quantized or packed. */
type CardModule = Pick<CanonicalModule, 'type' | 'shape' | 'granularity' | 'scales' | 'zeros'> &
  Partial<Pick<CanonicalModule, 'sparsity'>>;

export interface CardModel {
  /** How the directory stores its weights: the name of a pack target, or lpq-canonical. */
  readonly form: string;
  readonly modules: Readonly<Record<string, CardModule>>;
  /** Of every tensor of the directory, by name. */
  readonly tensors: Readonly<Record<string, string>>;
  readonly provenance: Provenance;
  readonly facts: CardFacts;
  /** What the base model's card says of licence, language and task (keptHead). */
  readonly base: Readonly<Record<string, unknown>>;
}

/** The base model's own card, beside ours. */
export const BASE_CARD = 'README.base.md';
const MARK = '<!-- Made by lpq. The card of the base model, where it has one, is README.base.md. -->';

/** Whether lpq wrote the card. */
export function isOwnCard(card: string): boolean {
  return card.includes(MARK);
}

/** README.md of a directory: the same for the same bytes of weights and the same options, wherever and how fast it was made. */
export function modelCard(model: CardModel): string {
  const { provenance, modules, form, facts, base, tensors } = model;
  const { source, method, options, calibration } = provenance;
  const types = typesOf(modules);
  const bits = meanOf(modules, bitsOfModule);
  const id = /^[\w.-]+\/[\w.-]+$/.test(source.name) ? source.name : undefined;
  const widths = [...new Set(types.map(({ bits: width }) => width))].sort((a, b) => a - b);
  const head = {
    ...base,
    ...(id !== undefined && { base_model: id, base_model_relation: 'quantized' }),
    tags: ['lpq', 'quantized', form, method, ...widths.map((width) => `${width}-bit`)].filter(unique),
    quantization: {
      method,
      bits: widths.length === 1 ? widths[0] : widths,
      bits_per_weight: round(bits),
      format: form,
    },
  };
  const commit = source.revision === null ? '' : `, commit \`${source.revision}\``;
  const from = id === undefined ? `\`${source.name}\`` : `[${id}](https://huggingface.co/${id})`;
  const [tool = '', release] = provenance.lpq.split(':');
  const rows: readonly (readonly [string, string])[] = [
    [knowsSource(provenance) ? 'quantized from' : 'packed from', `${from}${commit}`],
    ['method', `\`${method}\` of ${release === undefined ? `lpq ${tool}` : `${tool} ${release}`}`],
    ['format', `\`${form}\``],
    ['modules', types.map(({ says, count }) => `${count} × ${says}`).join('; ')],
    ['bits per weight', `${round(bits)} of the quantized modules, scales included`],
    ...(facts.relativeError === null
      ? []
      : [['relative error', `${facts.relativeError.toPrecision(3)}, mean over modules by weights`] as const]),
    ...(calibration
      ? [
          [
            'calibration',
            `${calibration.name}, ${calibration.sequences} sequences, ${calibration.tokens} tokens, seed ${calibration.seed}`,
          ] as const,
        ]
      : []),
  ];
  return [
    printHead(head),
    `# ${source.name.split('/').at(-1)}, ${types.length === 1 ? types[0]?.says : `${round(bits)} bits per weight`}`,
    '',
    MARK,
    '',
    '| | |',
    '|---|---|',
    ...rows.map(([key, value]) => `| ${key} | ${cell(value)} |`),
    '',
    '## How to serve it',
    '',
    'DIR is this directory, or its name on the Hub.',
    '',
    '```',
    ...facts.serve,
    '```',
    '',
    '## Options',
    '',
    '```json',
    JSON.stringify(options, null, 2),
    '```',
    '',
    '## Hashes',
    '',
    '`lpq.json` has the SHA-256 of every tensor; `lpq verify DIR` compares them, and decodes every packed weight.',
    '',
    '| | SHA-256 |',
    '|---|---|',
    `| fingerprint of the base model | \`${source.fingerprint}\` |`,
    ...(calibration ? [`| calibration text | \`${calibration.sha256}\` |`] : []),
    `| weights: of the lines \`NAME HASH\` of all tensors, sorted by name | \`${weightsHash(tensors)}\` |`,
    '',
  ].join('\n');
}

/** One hash for all weights: sha256 of the lines 'NAME HASH\n' of the tensors, by code units of their names. */
export function weightsHash(tensors: Readonly<Record<string, string>>): string {
  const hash = createHash('sha256');
  for (const name of Object.keys(tensors).sort()) hash.update(`${name} ${tensors[name]}\n`);
  return hash.digest('hex');
}

/** Of a quantized checkpoint, and of what is packed from it. */
export function cardFacts(
  modules: Readonly<Record<string, Pick<CanonicalModule, 'shape'> & { readonly quality?: Quality | undefined }>>,
  serve: readonly string[],
): CardFacts {
  const measured = Object.values(modules).some(({ quality }) => typeof quality?.relativeError === 'number');
  const relativeError = measured ? meanOf(modules, ({ quality }) => quality?.relativeError) : null;
  return { serve: [...serve], relativeError };
}

/** Mean over the modules that have a figure, by their weights; 0 without any. */
function meanOf<T extends Pick<CardModule, 'shape'>>(
  modules: Readonly<Record<string, T>>,
  figure: (module: T) => number | null | undefined,
): number {
  let [sum, weights] = [0, 0];
  for (const module of Object.values(modules)) {
    const value = figure(module);
    if (value === null || value === undefined) continue;
    const size = module.shape[0] * module.shape[1];
    sum += value * size;
    weights += size;
  }
  return weights > 0 ? sum / weights : 0;
}

/** The kinds of modules, the most frequent first. */
function typesOf(modules: CardModel['modules']): { says: string; bits: number; count: number }[] {
  const kinds = new Map<string, { says: string; bits: number; count: number }>();
  for (const { type, granularity, zeros, scales, sparsity } of Object.values(modules)) {
    const says = [
      type,
      ...(zeros.kind === 'int' || zeros.kind === 'float' ? ['with zero points'] : []),
      granularity.kind === 'channel' ? 'one scale per row' : `groups of ${granularity.size}`,
      `${scales.dtype} scales`,
      ...(sparsity === '2:4' ? ['2:4'] : []),
    ].join(', ');
    const kind = kinds.get(says) ?? { says, bits: Number(/\d/.exec(type)?.[0]), count: 0 };
    kind.count++;
    kinds.set(says, kind);
  }
  return [...kinds.values()].sort((a, b) => b.count - a.count || (a.says < b.says ? -1 : 1));
}

const round = (bits: number): number => Number(bits.toFixed(3));
const unique = <T>(value: T, at: number, all: readonly T[]): boolean => all.indexOf(value) === at;

/** Names come from directories: one with a bar or a line end would break the table. */
function cell(text: string): string {
  return text.replace(/[\r\n]+/g, ' ').replace(/\|/g, '\\|');
}
