import type { Readable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Dispatcher, EnvHttpProxyAgent, errors, type RequestInit, request, fetch as send } from 'undici';
import { tell } from '../core/activity.js';
import { LpqError } from '../core/error.js';
import type { HubEnvironment } from './environment.js';
import { cutOff, disconnection, type Headers, header, place, Transient } from './failures.js';

export interface ClientOptions {
  readonly signal?: AbortSignal | undefined;
  readonly userAgent?: string | undefined;
  /** The wait before the second try; each further one waits twice as long, at most half a minute. Default 1000. */
  readonly backoffMs?: number | undefined;
}

/** An answer after redirects. Its body must be read or destroyed. */
export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  readonly body: Readable;
  /** Where it came from in the end. */
  readonly url: string;
}

/** Tries in a row without any progress, after which a failure is told. */
const ATTEMPTS = 5;
const LONGEST_BACKOFF_MS = 30_000;
/** A server that asks for a longer wait is not waited for. */
const LONGEST_WAIT_SECONDS = 300;
const MOST_REDIRECTS = 10;
/** Answers of the API; a listing of a thousand files has some 300 kB. */
const LONGEST_TEXT = 2 ** 26;

/** Requests of the Hub: redirects that take no token along, proxies, time-outs, tries. */
export class HubClient {
  private readonly dispatcher: Dispatcher;
  private readonly origin: string;
  private readonly backoffMs: number;
  readonly signal: AbortSignal;

  constructor(
    readonly environment: HubEnvironment,
    private readonly options: ClientOptions = {},
  ) {
    this.origin = new URL(environment.endpoint).origin;
    this.backoffMs = options.backoffMs ?? 1000;
    this.signal = options.signal ?? new AbortController().signal;
    const { http, https, none } = environment.proxies;
    this.dispatcher = new EnvHttpProxyAgent({
      httpProxy: http,
      httpsProxy: https,
      noProxy: none,
      connect: { timeout: environment.answerSeconds * 1000 },
    });
  }

  get hasToken(): boolean {
    return this.environment.token !== undefined;
  }

  /** Closes idle connections. */
  async close(): Promise<void> {
    await this.dispatcher.destroy();
  }

  /**
   * One GET. `headers` is asked for each hop: `own` says whether it goes to the endpoint itself, the only one that is
   * given the token. Any status is an answer. Throws Transient when there is none, LPQ_HUB_RESPONSE for redirects that
   * lead nowhere, LPQ_ABORTED.
   */
  async send(
    url: string,
    what: string,
    headers: (target: URL, own: boolean) => Record<string, string>,
  ): Promise<Answer> {
    const { token, answerSeconds, silenceSeconds } = this.environment;
    let target = new URL(url);
    for (let hop = 0; hop <= MOST_REDIRECTS; hop++) {
      const own = target.origin === this.origin;
      let answer: Dispatcher.ResponseData;
      try {
        answer = await request(target, {
          dispatcher: this.dispatcher,
          signal: this.signal,
          headersTimeout: Math.max(answerSeconds, silenceSeconds) * 1000,
          bodyTimeout: silenceSeconds * 1000,
          headers: {
            // Compressed bytes could neither be resumed nor counted.
            'accept-encoding': 'identity',
            'user-agent': this.options.userAgent ?? 'lpq',
            ...headers(target, own),
            ...(own && token !== undefined && { authorization: `Bearer ${token}` }),
          },
        });
      } catch (cause) {
        throw this.failure(cause, target.href, what);
      }
      const { statusCode: status, body } = answer;
      // Whoever reads it is told; one that is dropped unread has nobody to tell.
      body.on('error', () => {});
      const location = header(answer.headers, 'location');
      if (![301, 302, 303, 307, 308].includes(status) || location === undefined)
        return { status, headers: answer.headers, body, url: target.href };
      await body.dump().catch(() => {});
      target = this.redirected(target, location, what);
    }
    throw new LpqError('LPQ_HUB_RESPONSE', `the server redirects ${what} in a loop`, { got: place(target.href) });
  }

  /** The text of a whole answer, whatever its status, tried several times; `check` makes an error of its status. */
  async text(
    url: string,
    what: string,
    accept: string,
    check: (answer: Answer) => LpqError | Transient | undefined,
  ): Promise<{ readonly text: string; readonly headers: Headers }> {
    return this.persist(async () => {
      const answer = await this.send(url, what, () => ({ accept }));
      const error = check(answer);
      if (error !== undefined) {
        answer.body.destroy();
        throw error;
      }
      const pieces: Buffer[] = [];
      let length = 0;
      try {
        for await (const piece of answer.body as AsyncIterable<Buffer>) {
          pieces.push(piece);
          length += piece.length;
          if (length > LONGEST_TEXT)
            throw new LpqError('LPQ_HUB_RESPONSE', `the server's answer for ${what} has no end`, {
              got: `more than ${LONGEST_TEXT} bytes from ${place(answer.url)}`,
            });
        }
      } catch (cause) {
        throw this.failure(cause, answer.url, what);
      }
      const announced = header(answer.headers, 'content-length');
      if (announced !== undefined && Number(announced) !== length)
        throw cutOff(what, `${length} of ${announced} bytes from ${place(answer.url)}`);
      return { text: Buffer.concat(pieces).toString('utf8'), headers: answer.headers };
    });
  }

  /**
   * fetch() for what is sent, tried once, by the proxies. The token takes the place of whatever authorization the caller has put in,
   * towards the endpoint; other hosts get none. An answer of any status is one. Throws Transient, LPQ_ABORTED.
   */
  upload(what: string): typeof globalThis.fetch {
    return async (input, init = {}) => {
      const url = new URL(input instanceof Request ? input.url : String(input));
      const headers = new Headers(init.headers);
      headers.set('user-agent', this.options.userAgent ?? 'lpq');
      const asked = headers.has('authorization');
      headers.delete('authorization');
      const { token } = this.environment;
      if (asked && url.origin === this.origin && token !== undefined) headers.set('authorization', `Bearer ${token}`);
      try {
        const answer = await send(url, { ...init, headers, dispatcher: this.dispatcher } as unknown as RequestInit);
        return answer as unknown as Response;
      } catch (cause) {
        throw this.failure((cause as Error).cause ?? cause, url.href, what);
      }
    };
  }

  /**
   * Runs `attempt` until it does not fail with a Transient. Gives up after a number of failures in a row without
   * progress, which `progress` measures: a download may break off as often as it likes while it moves on.
   */
  async persist<T>(attempt: () => Promise<T>, progress: () => number = () => 0): Promise<T> {
    let best = progress();
    for (let failures = 0; ; ) {
      try {
        return await attempt();
      } catch (thrown) {
        if (!(thrown instanceof Transient)) throw thrown;
        if (progress() > best) failures = 0;
        best = Math.max(best, progress());
        failures++;
        const asked = (thrown.waitSeconds ?? 0) * 1000;
        if (failures >= (thrown.attempts ?? ATTEMPTS) || asked > LONGEST_WAIT_SECONDS * 1000) throw thrown.error;
        // A random share, so that several downloads that were refused at once do not come back at once.
        const backoff = Math.min(LONGEST_BACKOFF_MS, this.backoffMs * 2 ** (failures - 1)) * (0.75 + Math.random() / 2);
        const wait = Math.max(asked, backoff);
        tell(`waiting ${Math.ceil(wait / 1000)} s to ask the Hub again`);
        await this.pause(wait);
      }
    }
  }

  /** Waits; a signal ends it with LPQ_ABORTED. */
  async pause(ms: number): Promise<void> {
    await sleep(ms, undefined, { signal: this.signal }).catch(() => {});
    this.check();
  }

  /** Throws LPQ_ABORTED once the signal is raised. */
  check(): void {
    if (this.signal.aborted) throw interrupted(this.signal.reason);
  }

  /** What a request or the reading of a body threw, as an error of ours. */
  failure(cause: unknown, url: string, what: string): Error {
    if (cause instanceof LpqError || cause instanceof Transient) return cause;
    if (this.signal.aborted) return interrupted(cause);
    if (cause instanceof errors.InvalidArgumentError)
      return new LpqError('LPQ_HUB_RESPONSE', `${place(url)} is not a valid address for ${what}`, { cause });
    return disconnection(innermost(cause), url, what);
  }

  private redirected(from: URL, location: string, what: string): URL {
    let target: URL | undefined;
    try {
      target = new URL(location, from);
    } catch {
      // told below
    }
    const safe = target?.protocol === 'https:' || (target?.protocol === 'http:' && from.protocol === 'http:');
    if (target && safe && target.username === '') return target;
    throw new LpqError('LPQ_HUB_RESPONSE', `the server redirects ${what} to an address that lpq does not follow`, {
      got: place(target?.href ?? location),
      expected: from.protocol === 'https:' ? 'an https address' : 'an http or https address',
    });
  }
}

function interrupted(cause: unknown): LpqError {
  return new LpqError('LPQ_ABORTED', 'the run was interrupted', { cause });
}

/** A name with several addresses fails with one error for each. */
function innermost(cause: unknown): unknown {
  return cause instanceof AggregateError && cause.errors.length > 0 ? cause.errors[0] : cause;
}
