import type { Report } from '../../formats/report/schema.js';
import { lineChart } from './chart.js';
import { countText, figure } from './markup.js';
import { note, section } from './page.js';

/** What training the scales on the model's end came to, with its loss by step. */
export function training({ scaleTraining }: Report): string {
  if (!scaleTraining) return '';
  const { steps, kept, tokens, heldOut, curve } = scaleTraining;
  const points = (pick: (look: (typeof curve)[number]) => number | null) =>
    curve.flatMap((look) => {
      const y = pick(look);
      return y === null ? [] : [{ x: look.step, y, title: `step ${look.step}: ${figure(y)}` }];
    });
  return section(
    'Training of scales',
    lineChart({
      title: 'KL to the unquantized model, nats per token',
      xLabel: 'step',
      yLabel: 'KL',
      series: [
        { label: 'held out', points: points(({ loss }) => loss) },
        { label: 'training', points: points(({ training: mean }) => mean) },
      ],
    }),
    note(
      `Step ${kept} of ${steps} was kept, by ${countText(heldOut)} held-out tokens; the steps were on ${countText(tokens)} tokens.`,
    ),
  );
}
