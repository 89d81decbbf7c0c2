import type { Report } from '../../formats/report/schema.js';
import { escapeText, figure, htmlTable } from './markup.js';
import { note, section } from './page.js';
import { BOUNDS, verdictOf, worstModules } from './verdict.js';

/** Is it good? The verdict, what it is measured by, and the modules that lose most. */
export function judged({ evaluations, totals, modules }: Report): string {
  const { grade, says, because } = verdictOf(evaluations, totals.relativeError);
  const { kl, perplexity, error } = BOUNDS;
  const percent = (share: number) => `${100 * share} %`;
  const worst = worstModules(modules);
  return section(
    'Verdict',
    `<p class="verdict ${grade}"><b>${escapeText(says.charAt(0).toUpperCase() + says.slice(1))}.</b></p>`,
    note(`${because}.`),
    note(
      `Close: KL up to ${kl.close} nats per token and perplexity up to ${percent(perplexity.close)} higher; as the bundled model at 4 bits. Noticeable: up to ${kl.noticeable} and ${percent(perplexity.noticeable)}, as the bundled model at 3 bits. Without a text, the mean relative error of modules decides: ${error.close} and ${error.noticeable}, which match these bounds on small models.`,
    ),
    worst.length === 0
      ? ''
      : note('The modules that lose most:') +
          htmlTable(
            ['module', 'scheme', 'error'],
            worst.map((module) => [module.name, module.scheme, figure(module.relativeError)]),
          ) +
          note('More bits for these modules help most: --redo quantizes them again and keeps the others.'),
  );
}

/** What the run was asked for, and the text that it was calibrated on. */
export function settings({ options, calibration, source }: Report): string {
  const shown = (value: unknown) => (typeof value === 'string' ? value : JSON.stringify(value));
  const text = calibration
    ? [
        ['calibration text', calibration.name],
        [
          'calibration tokens',
          `${calibration.tokens.toLocaleString('en')} in ${calibration.sequences.toLocaleString('en')} sequences`,
        ],
        ...(calibration.prefix ? [['sequences begin with token', calibration.prefix.join(' ')]] : []),
        ['sha256 of the text', calibration.sha256],
      ]
    : [['calibration text', 'none: the method reads only weights']];
  const rows = Object.entries(options).map(([name, value]) => [name, shown(value)]);
  return section(
    'Settings',
    htmlTable(['setting', 'value'], [...rows, ...text, ['fingerprint of the source', source.fingerprint]]),
  );
}
