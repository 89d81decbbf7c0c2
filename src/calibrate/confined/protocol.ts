import type { ErrorCode } from '../../core/codes.js';
import type { Conversation } from '../chat.js';
import type { TemplateFiles } from '../chat-template.js';

/** What the confined process is asked, one at a time and in order; `at` is the number that opening gave. */
export type Request =
  | { readonly kind: 'tokenizer'; readonly dir: string }
  | { readonly kind: 'encode'; readonly at: number; readonly text: string; readonly special: boolean }
  | { readonly kind: 'decode'; readonly at: number; readonly ids: readonly number[] }
  | { readonly kind: 'template'; readonly files: TemplateFiles }
  | { readonly kind: 'close'; readonly at: number }
  | {
      readonly kind: 'render';
      readonly at: number;
      readonly conversation: Conversation;
      readonly file: string;
      readonly answer: boolean;
    };

/** A tokenizer that was opened, and the regular expressions it splits text with. */
export interface OpenedTokenizer {
  readonly at: number;
  readonly patterns: readonly string[];
}

/** An LpqError on its way between processes. */
export interface Refusal {
  readonly code: ErrorCode;
  readonly message: string;
  readonly got: unknown;
  readonly expected: unknown;
  readonly hint: string | undefined;
}

export type Reply = { readonly value: unknown } | { readonly refusal: Refusal };
