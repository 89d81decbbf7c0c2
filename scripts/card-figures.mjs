// The tables of docs/comparison.md of what peers do on a card, from a result of bench/peers.
import {
  costOf,
  DOLLARS_AN_HOUR,
  deviceOf,
  largest,
  memoryOf,
  PART,
  perplexityOf,
  secondsOf,
  WHOLE,
  wholeSeconds,
} from './peer-cells.mjs';

const SMALL = [
  ['smollm2', 'SmolLM2-135M'],
  ['tiny-llama', 'a trained Llama of 4 blocks (share/tiny-llama)'],
  ['tiny-qwen3-moe', 'a trained mixture of 8 experts, 4 blocks'],
];
const WIDTHS = [4, 3, 2];
/** What of lpq stands against what of the others: methods that solve, and methods that train. */
const RIVALS = [
  [['lpq'], ['gptqmodel', 'llmcompressor']],
  [['lpq-tune200'], ['autoround-200']],
];
/** A hundredth is noise. */
const MARGIN = 1.01;

/** How the seconds of a cell were had. */
function howOf({ blocks, of, extrapolatedFrom }) {
  if (of === undefined) return 'measured';
  if (extrapolatedFrom) return `from ${extrapolatedFrom.join(' and ')} of ${of} blocks, on a line`;
  return `of ${blocks} of ${of} blocks`;
}

/** Time, memory and price of a model of 8B. */
function large(found) {
  const rows = found.tools.flatMap(([tool, label]) => {
    const cell = largest(found, WHOLE, 4, tool);
    if (!cell) return [];
    if (cell.failed) return [`| ${label} | fails | | | | |`];
    const seconds = wholeSeconds(cell).toFixed(0);
    return [`| ${[label, seconds, deviceOf(cell), memoryOf(cell), costOf(cell), howOf(cell)].join(' | ')} |`];
  });
  if (rows.length === 0) return [];
  const title = '**The shape of Llama-3-8B, random weights, a vocabulary of 2048, W4, 128 samples of 2048 tokens**';
  return [
    '',
    title,
    '',
    '| | s | GB of the card | GB of the host | a model costs | seconds |',
    '|-|-|-|-|-|-|',
    ...rows,
  ];
}

/** Whole processes over two of its blocks. */
function part(found) {
  const rows = found.tools.flatMap(([tool, label]) => {
    const cell = found.cell(PART, 4, tool);
    if (!cell) return [];
    if (cell.failed) return [`| ${label} | fails | | |`];
    return [`| ${[label, cell.seconds.toFixed(1), deviceOf(cell), memoryOf(cell)].join(' | ')} |`];
  });
  if (rows.length === 0) return [];
  const title = '**Two blocks of it**, whole processes with imports and what each compiles';
  return ['', title, '', '| | s | GB of the card | GB of the host |', '|-|-|-|-|', ...rows];
}

/** Time and perplexity of a model with a text. */
function small(found, model, title) {
  const widths = WIDTHS.filter((bits) => found.tools.some(([tool]) => found.cell(model, bits, tool)));
  const rows = found.tools.flatMap(([tool, label]) => {
    const cells = widths.map((bits) => found.cell(model, bits, tool));
    if (cells.every((cell) => cell === undefined)) return [];
    const parts = cells.flatMap((cell) => [
      ...[secondsOf(cell), deviceOf(cell)],
      cell?.failed ? 'fails' : perplexityOf(cell),
    ]);
    return [`| ${[label, ...parts].join(' | ')} |`];
  });
  if (rows.length === 0) return [];
  const heads = widths.flatMap((bits) => [`W${bits}: s`, 'GB of the card', 'perplexity']);
  return [
    '',
    `**${title}, on the card**`,
    '',
    `| ${['', ...heads].join(' | ')} |`,
    `|${'-|'.repeat(heads.length + 1)}`,
    ...rows,
  ];
}

/** What the cells of two tools are compared by: a name, the figure, how it is shown. */
const MEASURES = [
  [
    'takes',
    (cell) => (cell.extrapolatedFrom ? wholeSeconds(cell) : cell.seconds),
    (cell) => `${(cell.extrapolatedFrom ? wholeSeconds(cell) : cell.seconds).toFixed(0)} s`,
  ],
  ['takes', ({ deviceBytes }) => deviceBytes, (cell) => `${deviceOf(cell)} GB of the card`],
  [
    'has a perplexity of',
    ({ perplexity }) => (typeof perplexity?.lpq === 'number' ? perplexity.lpq : undefined),
    perplexityOf,
  ],
];

/** A sentence for each figure in which another tool is better than lpq. */
function losses(found) {
  const models = [
    ['the 8B model', WHOLE],
    ['two blocks of it', [PART]],
    ...SMALL.map(([model, title]) => [title.replace(/ \(.*/, ''), [model]]),
  ];
  const pairs = RIVALS.flatMap(([own, others]) => own.flatMap((one) => others.map((other) => [one, other])));
  return models.flatMap(([title, names]) =>
    WIDTHS.flatMap((bits) =>
      pairs.flatMap(([own, other]) => {
        const [mine, theirs] = [own, other].map((tool) => largest(found, names, bits, tool));
        if (!mine || !theirs || mine.failed || theirs.failed) return [];
        return MEASURES.flatMap(([verb, figure, shown]) => {
          const [a, b] = [figure(mine), figure(theirs)];
          if (a === undefined || b === undefined || a <= b * MARGIN) return [];
          return [
            `- ${title}, W${bits}: ${found.label(own)} ${verb} ${shown(mine)}, ${found.label(other)} ${shown(theirs)}.`,
          ];
        });
      }),
    ),
  );
}

/** The lines of a card's section; none if nothing was measured on one. */
export function cardFigures(found) {
  if (!found) return [];
  const { processor, threads, gpu } = found.machine;
  const lost = losses(found);
  return [
    '',
    '### On a card',
    '',
    `${gpu}, ${threads} threads of ${processor}; \`bench/results/${found.file}\`. A model costs what its seconds cost`,
    `at $${DOLLARS_AN_HOUR.toFixed(2)} an hour of the card: our assumption, whatever the memory. Perplexity is read by \`lpq eval\`. What GPT-QModel compiles`,
    'once on a machine is not counted; what AutoRound compiles for a model is. Memory is that of the blocks that were run.',
    '',
    ...found.versions.map((version) => `- ${version}`),
    ...(found.also ? ['', found.also] : []),
    ...(found.without ? ['', `Left out: ${found.without}.`] : []),
    ...large(found),
    ...part(found),
    ...SMALL.flatMap(([model, title]) => small(found, model, title)),
    ...(lost.length > 0 ? ['', '**Where lpq loses on the card**', '', ...lost] : []),
  ];
}
