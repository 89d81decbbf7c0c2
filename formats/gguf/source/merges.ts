import { tell } from '../../../src/core/activity.js';

/**
 * The merges of a tokenizer whose pieces have scores instead: a piece is made of every two pieces that it consists of, pieces of
 * higher scores first, as SentencePiece joins them. `merged`: which pieces take part. Each merge as 'LEFT RIGHT'.
 */
export function scoredMerges(list: readonly string[], scores: readonly number[], merged: readonly boolean[]): string[] {
  const ids = new Map<string, number>();
  for (const [id, piece] of list.entries()) if (merged[id] && !ids.has(piece)) ids.set(piece, id);
  const found: { readonly text: string; readonly score: number; readonly left: number; readonly right: number }[] = [];
  let done = 0;
  for (const [piece, id] of ids) {
    if (done++ % 16384 === 0) tell(`ordering the merges of ${ids.size} tokens`);
    for (let at = 1; at < piece.length; at++) {
      // Between the two units of one character there is nothing to cut.
      const unit = piece.charCodeAt(at);
      if (unit >= 0xdc00 && unit < 0xe000) continue;
      const left = ids.get(piece.slice(0, at));
      const right = left === undefined ? undefined : ids.get(piece.slice(at));
      if (left === undefined || right === undefined) continue;
      found.push({ text: `${list[left]} ${list[right]}`, score: scores[id] as number, left, right });
    }
  }
  return found.sort((a, b) => b.score - a.score || a.left - b.left || a.right - b.right).map(({ text }) => text);
}
