import type { ErrorCode } from '../core/codes.js';
import { LpqError } from '../core/error.js';

/** A failure that may pass when it is tried again; `error` is what the user sees when it does not. */
export class Transient extends Error {
  constructor(
    readonly error: LpqError,
    /** What the server asks to wait. */
    readonly waitSeconds?: number,
    /** How often to try in all. */
    readonly attempts?: number,
  ) {
    super(error.message);
  }
}

/** What a request was for, as sentences name it. */
export interface Purpose {
  /** For example "the model org/name" or "model.safetensors of org/name". */
  readonly what: string;
  readonly id: string;
  readonly revision: string;
  readonly hasToken: boolean;
}

export type Headers = Readonly<Record<string, string | string[] | undefined>>;

/** A header as one string. */
export function header(headers: Headers, name: string): string | undefined {
  const value = headers[name];
  return Array.isArray(value) ? value[0] : value;
}

/** The error of an answer that is no success. The Hub names the reason in X-Error-Code. */
export function refusal(status: number, headers: Headers, url: string, purpose: Purpose): LpqError | Transient {
  const { what, id, revision, hasToken } = purpose;
  const reason = header(headers, 'x-error-code') ?? '';
  const got = `status ${status}${reason ? ` (${reason})` : ''} of ${place(url)}`;
  const page = `its page on the Hub (${id})`;
  if (reason === 'GatedRepo')
    return new LpqError('LPQ_HUB_ACCESS', `${id} is gated: the Hub gives ${what} only to approved accounts`, {
      got,
      hint: hasToken
        ? `Request access on ${page} with the account of your token, and wait for approval.`
        : `Request access on ${page}, then set HF_TOKEN to a token of that account.`,
    });
  if (status === 401 || status === 403)
    return new LpqError(
      'LPQ_HUB_ACCESS',
      hasToken ? `the Hub refuses ${what} to this token` : `the Hub does not show ${what} without a token`,
      {
        got,
        hint: hasToken
          ? 'Check that the token is valid and may read this model; check the spelling of the name.'
          : 'Check the spelling: a missing model looks like a private one. For a private one, set HF_TOKEN.',
      },
    );
  if (status === 404 || status === 410) {
    const sentence = {
      RevisionNotFound: `${id} has no revision '${revision}' on the Hub`,
      EntryNotFound: `the Hub has no ${what}`,
    }[reason];
    return new LpqError('LPQ_HUB_NOT_FOUND', sentence ?? `the Hub has no ${what}`, {
      got,
      hint:
        reason === 'RevisionNotFound'
          ? `Look up the branches and tags on ${page}.`
          : 'Check the spelling of ORG/NAME; a private model needs HF_TOKEN.',
    });
  }
  if (status === 429) {
    const wait = waitOf(headers);
    const error = new LpqError('LPQ_HUB_RATE_LIMIT', `the Hub limits the rate of requests, and refused ${what}`, {
      got: wait === undefined ? got : `${got}, retry after ${Math.ceil(wait)} s`,
      hint: hasToken
        ? 'Wait a few minutes; lpq keeps what it has downloaded.'
        : 'Wait a few minutes, or set HF_TOKEN: the limits of accounts are higher.',
    });
    return new Transient(error, wait);
  }
  if (status >= 500 || status === 408)
    return new Transient(
      new LpqError('LPQ_HUB_SERVER', `the Hub answered ${what} with an error`, {
        got,
        hint: 'Try again later (status.huggingface.co); lpq keeps what it has downloaded.',
      }),
      waitOf(headers),
    );
  return new LpqError('LPQ_HUB_RESPONSE', `the server's answer for ${what} is not one of the Hub's`, {
    got,
    hint: 'Check HF_ENDPOINT and the proxy.',
  });
}

const REASONS: Readonly<Record<string, ErrorCode>> = {
  UND_ERR_HEADERS_TIMEOUT: 'LPQ_HUB_TIMEOUT',
  UND_ERR_BODY_TIMEOUT: 'LPQ_HUB_TIMEOUT',
  UND_ERR_CONNECT_TIMEOUT: 'LPQ_HUB_TIMEOUT',
  ETIMEDOUT: 'LPQ_HUB_TIMEOUT',
  UND_ERR_SOCKET: 'LPQ_HUB_CUT_OFF',
  UND_ERR_RES_CONTENT_LENGTH_MISMATCH: 'LPQ_HUB_CUT_OFF',
  UND_ERR_ABORTED: 'LPQ_HUB_CUT_OFF',
  ECONNRESET: 'LPQ_HUB_CUT_OFF',
  EPIPE: 'LPQ_HUB_CUT_OFF',
  ERR_STREAM_PREMATURE_CLOSE: 'LPQ_HUB_CUT_OFF',
};

/** The failure of a connection: silence, an end before the end, or no connection at all. */
export function disconnection(cause: unknown, url: string, what: string): Transient {
  const { code = '', message } = cause as NodeJS.ErrnoException;
  const got = `${message}${message.includes(code) ? '' : ` (${code})`}, from ${place(url)}`;
  const kind = code.startsWith('HPE_') ? 'LPQ_HUB_CUT_OFF' : (REASONS[code] ?? 'LPQ_HUB_UNREACHABLE');
  if (kind === 'LPQ_HUB_TIMEOUT')
    return new Transient(
      new LpqError(kind, `the Hub did not answer in time for ${what}`, {
        got,
        hint: 'Try again: lpq keeps what it has downloaded. HF_HUB_DOWNLOAD_TIMEOUT and HF_HUB_ETAG_TIMEOUT allow more seconds.',
        cause,
      }),
    );
  if (kind === 'LPQ_HUB_CUT_OFF') return cutOff(what, got, cause);
  return new Transient(
    new LpqError('LPQ_HUB_UNREACHABLE', `${place(url)} cannot be reached for ${what}`, {
      got: message,
      hint: 'Check the network, HTTPS_PROXY and HF_ENDPOINT; or give a directory, or a model that is in the cache with HF_HUB_OFFLINE=1.',
      cause,
    }),
    undefined,
    2,
  );
}

/** An answer that ended before its end. */
export function cutOff(what: string, got: string, cause?: unknown): Transient {
  return new Transient(
    new LpqError('LPQ_HUB_CUT_OFF', `the connection failed repeatedly during ${what}`, {
      got,
      hint: 'Run the command again: it continues the download.',
      cause,
    }),
  );
}

/** An address as it may be shown: signatures and tokens stand in the query. */
export function place(url: string): string {
  try {
    const { origin, pathname } = new URL(url);
    return origin + pathname;
  } catch {
    return 'an invalid address';
  }
}

/** Seconds from Retry-After, or from RateLimit: "api";r=0;t=55. */
function waitOf(headers: Headers): number | undefined {
  const after = header(headers, 'retry-after');
  if (after !== undefined) {
    const seconds = /^\d+$/.test(after.trim()) ? Number(after) : (Date.parse(after) - Date.now()) / 1000;
    if (Number.isFinite(seconds)) return Math.max(0, seconds);
  }
  const reset = /(?:^|;)\s*t=(\d+)/.exec(header(headers, 'ratelimit') ?? '')?.[1];
  return reset === undefined ? undefined : Number(reset);
}
