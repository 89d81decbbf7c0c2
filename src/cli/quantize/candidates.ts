import { LpqError } from '../../core/error.js';
import { printScheme, type QuantScheme } from '../../quantize/scheme.js';
import { schemeFrom } from './schemes.js';
import { overrideScheme, type SchemeSettings } from './settings.js';

/** A way to store a module, of which --target-bpw and --target-size choose one for each. */
export interface Candidate {
  /** As messages call it. */
  readonly label: string;
  /** What a recipe's rule says for it. */
  readonly settings: SchemeSettings;
  readonly scheme: QuantScheme;
}

/** Widths unless --choose-from names others; one bit is no choice that a search should make unasked. */
const WIDTHS = [2, 3, 4, 5, 6, 7, 8] as const;

/** What is chosen among: with `list`, as of --choose-from, what it names. Throws LPQ_USAGE, and what schemeFrom() throws. */
export function candidatesOf(settings: SchemeSettings, list: string | undefined): readonly Candidate[] {
  if (list === undefined)
    return WIDTHS.map((bits) => {
      const scheme = schemeFrom(overrideScheme<SchemeSettings, SchemeSettings>(settings, { bits }));
      return { label: `${bits} bits`, settings: { bits }, scheme };
    });
  const candidates = list.split(',').map((item) => namedCandidate(settings, item.trim()));
  const labels = candidates.map(({ label }) => label);
  const twice = labels.find((label, i) => labels.indexOf(label) !== i);
  if (candidates.length > 1 && twice === undefined) return candidates;
  throw new LpqError('LPQ_USAGE', `--choose-from ${twice === undefined ? 'names one type' : `names ${twice} twice`}`, {
    got: list,
    expected: 'two or more types, each once, such as 2:64,3,4,mxfp4',
    hint: 'Without --choose-from, lpq chooses among 2 to 8 bits.',
  });
}

/** TYPE or TYPE:GROUP. A type with a size of its own (mxfp4) keeps it, and its scales; others have those of the run. */
function namedCandidate(settings: SchemeSettings, item: string): Candidate {
  const [, type, group] = /^([A-Za-z0-9_]+)(?::(\d+|channel))?$/.exec(item) ?? [];
  if (type === undefined)
    throw new LpqError('LPQ_USAGE', `--choose-from does not take '${item}'`, {
      got: item,
      expected: 'TYPE or TYPE:GROUP, such as 3, 2:64, mxfp4 or 4:channel',
    });
  const { groupSize, scaleDtype, ...rest } = settings;
  const named = /^[0-9]+$/.test(type) ? { bits: Number(type) } : { dtype: type };
  const size: SchemeSettings['groupSize'] = group === undefined || group === 'channel' ? group : Number(group);
  const made = (own: SchemeSettings) =>
    schemeFrom(overrideScheme<SchemeSettings, SchemeSettings>(rest, { ...named, ...own }));
  // What the type alone says, to see whether it has groups and scales of its own.
  const alone = made({});
  const free = !alone.scaleDtype.startsWith('f8');
  const own = {
    ...(size !== undefined ? { groupSize: size } : free && groupSize !== undefined && { groupSize }),
    ...(free && scaleDtype !== undefined && { scaleDtype }),
  };
  const scheme = made(own);
  const { granularity } = scheme;
  const said = granularity.kind === 'channel' ? 'channel' : granularity.size;
  // All of it: rules stand over the settings of the type that most modules have.
  const full = { ...named, groupSize: said, scaleDtype: scheme.scaleDtype.replace(/^f8_/, '') } as SchemeSettings;
  return { label: printScheme(scheme), settings: full, scheme };
}
