import { readFileSync } from 'node:fs';
import { rename } from 'node:fs/promises';
import path from 'node:path';
import { factsOf } from '../directory/facts.js';
import type { OutputDirectory } from '../directory/output-directory.js';
import { writeError } from '../directory/write-error.js';
import { BASE_CARD, type CardModel, isOwnCard, modelCard } from './card.js';
import { keptHead } from './head.js';

const CARD = 'README.md';

/** Cards are prose: of a longer one the head is not read. */
const LONGEST = 2 ** 22;

/**
 * Writes README.md. The base model's card, which was carried under this name, becomes README.base.md; where one is there already
 * (of the quantized checkpoint that was packed), that one stays. Throws LPQ_OUTPUT_WRITE.
 */
export async function writeCard(output: OutputDirectory, model: Omit<CardModel, 'base'>): Promise<void> {
  const [own, other] = [path.join(output.path, CARD), path.join(output.path, BASE_CARD)];
  const carried = textOf(own);
  if (carried !== undefined && !isOwnCard(carried))
    await rename(own, other).catch((cause: unknown) => {
      throw writeError(other, cause);
    });
  const base = textOf(other);
  await output.writeFile(CARD, modelCard({ ...model, base: base === undefined ? {} : keptHead(base) }));
}

function textOf(file: string): string | undefined {
  const facts = factsOf(file);
  if (!facts?.isFile()) return undefined;
  return facts.size > LONGEST ? '' : readFileSync(file, 'utf8');
}
