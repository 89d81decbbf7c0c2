import { readFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { LpqError } from '../core/error.js';

/** What the environment says about the Hub: the variables that Python's huggingface_hub reads, with its defaults. */
export interface HubEnvironment {
  /** Without a slash at the end. HF_ENDPOINT, https://huggingface.co. */
  readonly endpoint: string;
  /** HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, else HF_HOME/hub; HF_HOME is XDG_CACHE_HOME/huggingface. */
  readonly cache: string;
  /** HF_TOKEN, HUGGING_FACE_HUB_TOKEN, else the file HF_TOKEN_PATH, HF_HOME/token. Never printed. */
  readonly token: string | undefined;
  /** HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE: nothing is asked of the network. */
  readonly offline: boolean;
  /** Most seconds to wait for an answer of the API. HF_HUB_ETAG_TIMEOUT, 10. */
  readonly answerSeconds: number;
  /** Most seconds of silence within a download. HF_HUB_DOWNLOAD_TIMEOUT, 30. */
  readonly silenceSeconds: number;
  /** HTTP_PROXY, HTTPS_PROXY, NO_PROXY, in either case; '' for none. */
  readonly proxies: { readonly http: string; readonly https: string; readonly none: string };
}

type Variables = Readonly<Record<string, string | undefined>>;

/** Throws LPQ_USAGE for an endpoint, a token or a time-out that is none. */
export function hubEnvironment(env: Variables = process.env): HubEnvironment {
  const cacheHome = given(env, 'XDG_CACHE_HOME') ?? path.join(os.homedir(), '.cache');
  const home = expand(given(env, 'HF_HOME') ?? path.join(cacheHome, 'huggingface'), env);
  const cache = given(env, 'HF_HUB_CACHE') ?? given(env, 'HUGGINGFACE_HUB_CACHE') ?? path.join(home, 'hub');
  return {
    endpoint: endpointOf(given(env, 'HF_ENDPOINT') ?? 'https://huggingface.co'),
    cache: path.resolve(expand(cache, env)),
    token: tokenOf(env, home),
    offline: isOn(given(env, 'HF_HUB_OFFLINE') ?? given(env, 'TRANSFORMERS_OFFLINE')),
    answerSeconds: seconds(env, 'HF_HUB_ETAG_TIMEOUT', 10),
    silenceSeconds: seconds(env, 'HF_HUB_DOWNLOAD_TIMEOUT', 30),
    proxies: { http: proxy(env, 'http_proxy'), https: proxy(env, 'https_proxy'), none: eitherCase(env, 'no_proxy') },
  };
}

/** A variable that is set to nothing is not set. */
function given(env: Variables, name: string): string | undefined {
  const value = env[name];
  return value === undefined || value === '' ? undefined : value;
}

function isOn(value: string | undefined): boolean {
  return value !== undefined && ['1', 'ON', 'YES', 'TRUE'].includes(value.toUpperCase());
}

/** ~ and $NAME, as Python's expanduser and expandvars; what is not set stays. */
function expand(text: string, env: Variables): string {
  const home = text === '~' || text.startsWith('~/') ? os.homedir() + text.slice(1) : text;
  return home.replace(
    /\$(\w+)|\$\{([^}]*)\}/g,
    (all, bare?: string, braced?: string) => env[bare ?? braced ?? ''] ?? all,
  );
}

function seconds(env: Variables, name: string, otherwise: number): number {
  const text = given(env, name);
  if (text === undefined) return otherwise;
  const value = Number(text);
  if (Number.isFinite(value) && value > 0) return value;
  throw new LpqError('LPQ_USAGE', `${name} is not a number of seconds`, { got: text, expected: 'a positive number' });
}

function eitherCase(env: Variables, name: string): string {
  return given(env, name) ?? given(env, name.toUpperCase()) ?? '';
}

function proxy(env: Variables, name: string): string {
  const text = eitherCase(env, name);
  if (text === '' || (URL.canParse(text) && /^https?:$/.test(new URL(text).protocol))) return text;
  // Its address may hold a password.
  throw new LpqError('LPQ_USAGE', `${name.toUpperCase()} is not a proxy address that lpq can use`, {
    got: 'an address (not shown)',
    expected: 'for example http://proxy.example:3128',
  });
}

function endpointOf(text: string): string {
  let url: URL | undefined;
  try {
    url = new URL(text);
  } catch {
    // told below
  }
  if (url && /^https?:$/.test(url.protocol) && url.search === '' && url.hash === '' && url.username === '')
    return (url.origin + url.pathname).replace(/\/+$/, '');
  throw new LpqError('LPQ_USAGE', 'HF_ENDPOINT is not the address of a hub', {
    // An address may hold a password.
    got: url?.username ? 'an address with a user name' : text,
    expected: 'for example https://huggingface.co',
  });
}

function tokenOf(env: Variables, home: string): string | undefined {
  if (isOn(given(env, 'HF_HUB_DISABLE_IMPLICIT_TOKEN'))) return undefined;
  const name = ['HF_TOKEN', 'HUGGING_FACE_HUB_TOKEN'].find((known) => (env[known] ?? '').trim() !== '');
  const file = expand(given(env, 'HF_TOKEN_PATH') ?? path.join(home, 'token'), env);
  const token = (name === undefined ? contents(file) : (env[name] as string)).trim();
  if (token === '') return undefined;
  // Anything else could not stand in a header, and the error that says so would print it.
  if (/^[\x21-\x7e]+$/.test(token)) return token;
  throw new LpqError('LPQ_USAGE', `the token in ${name ?? file} is malformed`, {
    got: 'blanks or characters outside ASCII (not shown)',
    expected: 'a token such as hf_..., on one line',
  });
}

function contents(file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return ''; // nobody has logged in here
  }
}
