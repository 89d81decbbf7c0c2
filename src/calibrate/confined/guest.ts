// The confined process: runs what model files bring along (patterns of tokenizers, chat templates), so that whatever they do
// can be ended from outside. Started by host.ts, which gives its process id as the argument.
import { Worker } from 'node:worker_threads';
import { LpqError } from '../../core/error.js';
import type { Refusal, Reply, Request } from './protocol.js';
import { parseTemplates, type Templates } from './templates.js';
import { openSync, type SyncTokenizer } from './tokenizer.js';

/**
 * A process that runs an expression for ever does not see that its parent is gone. This thread does.
 */
const WATCH = `
  const { workerData } = require('node:worker_threads');
  setInterval(() => process.ppid === workerData || process.kill(process.pid, 'SIGKILL'), 1000);
`;

/** What was opened, by its number. */
const tokenizers = new Map<number, SyncTokenizer>();
const templates = new Map<number, Templates>();
let count = 0;

function answer(request: Request): unknown {
  switch (request.kind) {
    case 'tokenizer': {
      const tokenizer = openSync(request.dir);
      tokenizers.set(++count, tokenizer);
      return { at: count, patterns: tokenizer.patterns };
    }
    case 'encode':
      return Int32Array.from((tokenizers.get(request.at) as SyncTokenizer).encode(request.text, request.special));
    case 'decode':
      return (tokenizers.get(request.at) as SyncTokenizer).decode(request.ids);
    case 'template':
      templates.set(++count, parseTemplates(request.files));
      return { at: count };
    case 'close':
      return tokenizers.delete(request.at) || templates.delete(request.at);
    case 'render':
      return (templates.get(request.at) as Templates).render(request.conversation, request.file, request.answer);
  }
}

function refusalOf(thrown: unknown): Refusal {
  if (thrown instanceof LpqError) {
    const { code, message, got, expected, hint } = thrown;
    return { code, message, got, expected, hint };
  }
  const message = thrown instanceof Error ? (thrown.stack ?? thrown.message) : String(thrown);
  return { code: 'LPQ_INTERNAL', message, got: undefined, expected: undefined, hint: undefined };
}

function serve(parent: number): void {
  new Worker(WATCH, { eval: true, workerData: parent }).unref();
  process.on('message', (request: Request) => {
    let reply: Reply;
    try {
      reply = { value: answer(request) };
    } catch (thrown) {
      reply = { refusal: refusalOf(thrown) };
    }
    process.send?.(reply);
  });
  process.on('disconnect', () => process.exit());
}

serve(Number(process.argv[2]));
