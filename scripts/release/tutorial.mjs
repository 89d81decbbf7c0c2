// The commands of docs/tutorial.md, as a reader pastes them.
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const page = path.join(path.dirname(fileURLToPath(import.meta.url)), '..', '..', 'docs', 'tutorial.md');

/**
 * Blocks marked `sh` whole, and each command of those marked `console` with the lines that the page shows below it; `status`: the exit
 * code that it says.
 */
export function tutorialSteps() {
  const text = readFileSync(page, 'utf8');
  const steps = [];
  for (const [, kind, block] of text.matchAll(/```(sh|console)\n([\s\S]*?)```/g)) {
    if (kind === 'sh') steps.push({ script: block.trimEnd(), lines: [], status: 0 });
    else
      for (const line of block.trimEnd().split('\n'))
        if (line.startsWith('$ ')) steps.push({ script: line.slice(2), lines: [], status: 0 });
        else steps.at(-1).lines.push(line);
  }
  for (const step of steps) {
    const [code] = step.lines.flatMap((line) => /^LPQ_\w+/.exec(line)?.[0] ?? []);
    if (code !== undefined) step.status = code === 'LPQ_VERIFY' ? 1 : 2;
  }
  return steps;
}
