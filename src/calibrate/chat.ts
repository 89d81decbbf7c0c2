import { LpqError } from '../core/error.js';
import { findChatTemplate, type TemplateFiles } from './chat-template.js';
import { type Allowance, budgetFor, GENEROUS, secondsFor } from './confined/allowance.js';
import type { Excess } from './confined/host.js';
import { Opened } from './confined/opened.js';

/** A conversation of a .jsonl: a line with `messages`. */
export interface Conversation {
  /** From 1, for messages. */
  readonly line: number;
  readonly messages: readonly Readonly<Record<string, unknown>>[];
  /** Definitions of functions, as JSON Schema; passed on to the template, as are `documents`. */
  readonly tools?: readonly unknown[];
  readonly documents?: readonly unknown[];
  /** More variables of the template, such as enable_thinking. */
  readonly variables?: Readonly<Record<string, unknown>>;
}

/** A model's chat template, which turns a conversation into the text that the model was trained on. It runs in a process of its own. */
export class ChatTemplate {
  private constructor(
    private readonly files: TemplateFiles,
    private readonly opened: Opened<{ readonly at: number }>,
    private readonly allowance: Allowance,
  ) {}

  /** Throws LPQ_CONFIG where the model has no template, or one that cannot be parsed; LPQ_BUDGET. */
  static async open(dir: string, allowance: Allowance = GENEROUS): Promise<ChatTemplate> {
    const files = findChatTemplate(dir);
    const opened = await Opened.open<{ readonly at: number }>(
      { kind: 'template', files },
      budgetFor(allowance),
      (excess) => beyond(`the chat template of ${files.place} cannot be parsed`, excess),
    );
    return new ChatTemplate(files, opened, allowance);
  }

  /** Of the templates and the special tokens. */
  get sha256(): string {
    return this.files.sha256;
  }

  /**
   * The text of a whole conversation, with every special token that the model expects and without an opened answer at its
   * end unless `answer` is set. As in transformers, a template named tool_use serves conversations with tools. `file` is for
   * messages. Throws LPQ_CALIBRATION_TEXT naming the line where the template refuses the conversation or fails, LPQ_BUDGET where
   * it does not come to an end, LPQ_ABORTED.
   */
  render(conversation: Conversation, file: string, answer = false): Promise<string> {
    const what = `the chat template of ${this.files.place} cannot print line ${conversation.line} of ${file}`;
    return this.opened.ask<string>(
      ({ at }) => ({ kind: 'render', at, conversation, file, answer }),
      secondsFor(this.allowance, JSON.stringify(conversation).length),
      (excess) => beyond(what, excess),
    );
  }
}

function beyond(what: string, { of, got }: Excess): LpqError {
  return new LpqError('LPQ_BUDGET', `${what} within its limit of ${of}`, {
    got,
    hint: 'Use the published template; this one may be an attempt to hang programs.',
  });
}
