import { Environment, Interpreter, Template } from '@huggingface/jinja';
import { LpqError } from '../core/error.js';
import { findChatTemplate, type TemplateFiles } from './chat-template.js';

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

/** Friday, 26 July 2024: what templates that ask for the date of today are told, so that the bytes do not depend on it. */
const TODAY = new Date(Date.UTC(2024, 6, 26));
const DAYS = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday'];
const MONTHS = [
  ...['January', 'February', 'March', 'April', 'May', 'June'],
  ...['July', 'August', 'September', 'October', 'November', 'December'],
];

/** A model's chat template, which turns a conversation into the text that the model was trained on. */
export class ChatTemplate {
  private readonly parsed = new Map<string, Template>();

  private constructor(private readonly files: TemplateFiles) {
    for (const [name, text] of files.templates)
      try {
        this.parsed.set(name, new Template(text));
      } catch (cause) {
        const which = files.templates.size > 1 ? ` '${name}'` : '';
        throw new LpqError('LPQ_CONFIG', `the chat template${which} of ${files.place} is no Jinja that lpq can run`, {
          got: (cause as Error).message,
          cause,
        });
      }
  }

  /** Throws LPQ_CONFIG where the model has no template, or one that cannot be parsed. */
  static open(dir: string): ChatTemplate {
    return new ChatTemplate(findChatTemplate(dir));
  }

  /** Of the templates and the special tokens. */
  get sha256(): string {
    return this.files.sha256;
  }

  /**
   * The text of a whole conversation, with every special token that the model expects and without an opened answer at its
   * end unless `answer` is set. As in transformers, a template named tool_use serves conversations with tools. `file` is for
   * messages. Throws LPQ_CALIBRATION_TEXT naming the line where the template refuses the conversation or fails.
   */
  render(conversation: Conversation, file: string, answer = false): string {
    const { line, messages, tools, documents, variables } = conversation;
    const { specialTokens, place } = this.files;
    const template = (tools && this.parsed.get('tool_use')) ?? this.parsed.get('default');
    if (!template)
      throw new LpqError('LPQ_CONFIG', `${place} has several chat templates but none named default`, {
        got: [...this.parsed.keys()].join(', '),
      });
    try {
      const scope = new Environment();
      const values = {
        ...GLOBALS,
        ...specialTokens,
        ...variables,
        messages,
        tools: tools ?? null,
        documents: documents ?? null,
        add_generation_prompt: answer,
      };
      for (const [name, value] of Object.entries(values)) scope.set(name, value);
      return (new Interpreter(scope).run(template.parsed) as { value: string }).value;
    } catch (cause) {
      throw new LpqError(
        'LPQ_CALIBRATION_TEXT',
        `line ${line} of ${file} does not go through the model's chat template`,
        {
          got: (cause as Error).message,
          hint: `Change the conversation, or leave it out; the template is in ${place}.`,
          cause,
        },
      );
    }
  }
}

const GLOBALS: Readonly<Record<string, unknown>> = {
  true: true,
  false: false,
  none: null,
  True: true,
  False: false,
  None: null,
  raise_exception: (message: unknown) => {
    throw new Error(String(message));
  },
  range: (start: number, stop?: number, step?: number) => range(start, stop, step),
  strftime_now: (format: string) => formatDate(format),
};

/** Python's. */
function range(first: number, second?: number, step = 1): number[] {
  const [start, stop] = second === undefined ? [0, first] : [first, second];
  if (step === 0) throw new Error('range() with a step of 0');
  return Array.from({ length: Math.max(0, Math.ceil((stop - start) / step)) }, (_, i) => start + i * step);
}

/** The directives of strftime that templates use; the time is midnight. */
function formatDate(format: string): string {
  const two = (value: number) => String(value).padStart(2, '0');
  const day = DAYS[TODAY.getUTCDay()] as string;
  const month = MONTHS[TODAY.getUTCMonth()] as string;
  const parts: Readonly<Record<string, string>> = {
    Y: String(TODAY.getUTCFullYear()),
    y: two(TODAY.getUTCFullYear() % 100),
    m: two(TODAY.getUTCMonth() + 1),
    d: two(TODAY.getUTCDate()),
    '-d': String(TODAY.getUTCDate()),
    '-m': String(TODAY.getUTCMonth() + 1),
    B: month,
    b: month.slice(0, 3),
    A: day,
    a: day.slice(0, 3),
    H: '00',
    I: '12',
    M: '00',
    S: '00',
    p: 'AM',
    '%': '%',
  };
  return format.replace(/%(-?[A-Za-z%])/g, (directive, letter: string) => parts[letter] ?? directive);
}
