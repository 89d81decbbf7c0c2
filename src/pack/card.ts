import { type CardFacts, cardFacts } from '../../formats/card/card.js';
import type { PackRequest } from './pack-checkpoint.js';
import type { PackPlan } from './plan.js';

/** What the card of an artifact says beside its manifest. */
export function packedCard({ input, serve }: PackRequest, { target }: PackPlan): CardFacts {
  return cardFacts(input.manifest.modules, serve ?? target.serve ?? ['lpq generate DIR --prompt "..."']);
}
