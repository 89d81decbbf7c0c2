import { Environment, Interpreter, Template } from '@huggingface/jinja';
import { LpqError } from '../../core/error.js';
import type { Conversation } from '../chat.js';
import type { TemplateFiles } from '../chat-template.js';

/** Friday, 26 July 2024: what templates that ask for the date of today are told, so that the bytes do not depend on it. */
const TODAY = new Date(Date.UTC(2024, 6, 26));
const DAYS = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday'];
const MONTHS = [
  ...['January', 'February', 'March', 'April', 'May', 'June'],
  ...['July', 'August', 'September', 'October', 'November', 'December'],
];

/** Chat templates within the confined process, where rendering may take as long as their loops let it. */
export interface Templates {
  /** As ChatTemplate.render(). */
  render(conversation: Conversation, file: string, answer: boolean): string;
}

/** Throws LPQ_CONFIG. */
export function parseTemplates({ place, specialTokens, templates }: TemplateFiles): Templates {
  const parsed = new Map<string, Template>();
  for (const [name, text] of templates)
    try {
      parsed.set(name, new Template(text));
    } catch (cause) {
      const which = templates.size > 1 ? ` '${name}'` : '';
      throw new LpqError('LPQ_CONFIG', `the chat template${which} of ${place} is not Jinja that lpq can run`, {
        got: (cause as Error).message,
        cause,
      });
    }
  return {
    render({ line, messages, tools, documents, variables }, file, answer) {
      const template = (tools && parsed.get('tool_use')) ?? parsed.get('default');
      if (!template)
        throw new LpqError('LPQ_CONFIG', `${place} has several chat templates but none named default`, {
          got: [...parsed.keys()].join(', '),
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
        throw new LpqError('LPQ_CALIBRATION_TEXT', `line ${line} of ${file} is rejected by the model's chat template`, {
          got: (cause as Error).message,
          hint: `Change the conversation, or leave it out; the template is in ${place}.`,
          cause,
        });
      }
    },
  };
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
