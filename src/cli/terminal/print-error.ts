import type { LpqError } from '../../core/error.js';
import { oneLine } from '../../core/visible.js';
import { paint } from './terminal.js';

/**
 * An error as the terminal shows it: code and sentence, then got, expected, hint and the chain of causes, one a line.
 * `verbose` adds the stack of an LPQ_INTERNAL.
 */
export function formatError(error: LpqError, options: { color: boolean; verbose: boolean }): string {
  const { color, verbose } = options;
  const row = (label: string, value: string) => `  ${paint(label.padEnd(10), 'dim', color)}${value}`;
  const lines = [`${paint(error.code, 'red', color)}  ${oneLine(error.message)}`];
  if (error.got !== undefined) lines.push(row('got', oneLine(shown(error.got))));
  if (error.expected !== undefined) lines.push(row('expected', oneLine(shown(error.expected))));
  if (error.hint !== undefined) lines.push(row('hint', oneLine(error.hint)));
  for (const cause of causes(error)) if (!error.message.includes(cause)) lines.push(row('caused by', indent(cause)));
  if (verbose && error.code === 'LPQ_INTERNAL') lines.push(indentAll(stackOf(error)));
  return `${lines.join('\n')}\n`;
}

/** The same as one event for --json. */
export function errorEvent(error: LpqError, verbose: boolean): Record<string, unknown> {
  const chain = causes(error);
  return {
    code: error.code,
    message: error.message,
    exit: error.exitCode,
    ...(error.got !== undefined && { got: error.got }),
    ...(error.expected !== undefined && { expected: error.expected }),
    ...(error.hint !== undefined && { hint: error.hint }),
    ...(chain.length > 0 && { causes: chain }),
    ...(verbose && error.code === 'LPQ_INTERNAL' && { stack: stackOf(error) }),
  };
}

/** Messages of the causes, nearest first. */
function causes(error: Error): string[] {
  const list: string[] = [];
  const seen = new Set<unknown>([error]);
  for (let cause = error.cause; cause !== undefined && cause !== null && !seen.has(cause); ) {
    seen.add(cause);
    list.push(cause instanceof Error ? cause.message : String(cause));
    cause = cause instanceof Error ? cause.cause : undefined;
  }
  return list;
}

function stackOf(error: Error): string {
  const inner = error.cause instanceof Error ? error.cause.stack : undefined;
  return inner ?? error.stack ?? '';
}

/** A fact as the terminal shows it. */
export function shown(value: unknown): string {
  if (typeof value === 'string') return value;
  if (Array.isArray(value)) return value.map(shown).join(', ');
  return typeof value === 'object' ? JSON.stringify(value) : String(value);
}

// Parsers show the place in several lines; none of them may stand where lpq's own begin.
function indent(text: string): string {
  return text.replaceAll('\n', `\n${' '.repeat(12)}`);
}

function indentAll(text: string): string {
  return text.replace(/^/gm, '  ');
}
