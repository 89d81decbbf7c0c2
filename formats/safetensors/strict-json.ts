/**
 * JSON as untrusted headers need it: duplicate keys are an error (JSON.parse keeps the last silently), and numbers keep
 * their spelling, so that 1.0, 1e3 and integers beyond 2^53 can be told from integers. Objects are Maps: a key called
 * __proto__ is a key. RFC 8259; positions count UTF-16 units.
 */
export type StrictJson = string | boolean | null | JsonNumber | StrictJson[] | Map<string, StrictJson>;

/** A number as it was written. */
export class JsonNumber {
  constructor(readonly text: string) {}
}

/** What parseStrictJson throws; callers wrap it in a designed error that names the file. */
export class StrictJsonError extends Error {}

const NUMBER = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y;
const PLAIN_STRING = /"[^"\\\p{Cc}]*"/uy;
// A header nests three deep. The bound keeps a hostile one from overflowing the stack.
const MAX_DEPTH = 64;

/** Parses the whole of `text`; white space may surround the value. Throws StrictJsonError. */
export function parseStrictJson(text: string): StrictJson {
  const parser = new Parser(text);
  const value = parser.value(0);
  parser.end();
  return value;
}

class Parser {
  private at = 0;
  constructor(private readonly text: string) {}

  value(depth: number): StrictJson {
    if (depth > MAX_DEPTH) this.fail(`values are nested deeper than ${MAX_DEPTH}`);
    this.space();
    const c = this.text[this.at];
    if (c === '{') return this.object(depth);
    if (c === '[') return this.array(depth);
    if (c === '"') return this.string();
    NUMBER.lastIndex = this.at;
    const match = NUMBER.exec(this.text);
    if (match) {
      this.at += match[0].length;
      return new JsonNumber(match[0]);
    }
    return this.word(c);
  }

  end(): void {
    this.space();
    if (this.at < this.text.length) this.fail(`${show(this.text[this.at] as string)} follows the value`);
  }

  private word(c: string | undefined): boolean | null {
    for (const [word, value] of [
      ['true', true],
      ['false', false],
      ['null', null],
    ] as const)
      if (this.text.startsWith(word, this.at)) {
        this.at += word.length;
        return value;
      }
    return this.fail(c === undefined ? 'the text ends where a value was expected' : `${show(c)} begins no value`);
  }

  private object(depth: number): Map<string, StrictJson> {
    const members = new Map<string, StrictJson>();
    this.at++;
    this.space();
    if (this.take('}')) return members;
    for (;;) {
      this.space();
      if (this.text[this.at] !== '"') this.fail('a key in quotes was expected');
      const key = this.string();
      if (members.has(key)) this.fail(`the key ${JSON.stringify(key)} appears twice`);
      this.space();
      if (!this.take(':')) this.fail(`':' was expected after the key ${JSON.stringify(key)}`);
      members.set(key, this.value(depth + 1));
      this.space();
      if (this.take('}')) return members;
      if (!this.take(',')) this.fail("',' or '}' was expected");
    }
  }

  private array(depth: number): StrictJson[] {
    const items: StrictJson[] = [];
    this.at++;
    this.space();
    if (this.take(']')) return items;
    for (;;) {
      items.push(this.value(depth + 1));
      this.space();
      if (this.take(']')) return items;
      if (!this.take(',')) this.fail("',' or ']' was expected");
    }
  }

  private string(): string {
    // Nearly every string of a header has no escape: one match instead of a walk.
    PLAIN_STRING.lastIndex = this.at;
    if (PLAIN_STRING.test(this.text)) {
      const inside = this.text.slice(this.at + 1, PLAIN_STRING.lastIndex - 1);
      this.at = PLAIN_STRING.lastIndex;
      return inside;
    }
    const begin = this.at++;
    for (; ; this.at++) {
      const code = this.text.charCodeAt(this.at);
      if (Number.isNaN(code)) this.fail('a string does not end');
      if (code < 0x20) this.fail('a string holds a control character');
      if (code === 0x5c) this.at++;
      else if (code === 0x22) break;
    }
    const literal = this.text.slice(begin, ++this.at);
    try {
      const value = JSON.parse(literal) as string;
      // A lone surrogate is no text: two such names would be written as the same bytes.
      if (/\p{Surrogate}/u.test(value)) this.fail('a string holds half a surrogate pair');
      return value;
    } catch (error) {
      if (error instanceof StrictJsonError) throw error;
      return this.fail(`${literal.slice(0, 80)} has a broken escape`);
    }
  }

  private take(c: string): boolean {
    if (this.text[this.at] !== c) return false;
    this.at++;
    return true;
  }

  private space(): void {
    for (let c = this.text.charCodeAt(this.at); c === 0x20 || c === 0x0a || c === 0x0d || c === 0x09; )
      c = this.text.charCodeAt(++this.at);
  }

  private fail(what: string): never {
    throw new StrictJsonError(`${what} (at character ${this.at})`);
  }
}

function show(c: string): string {
  return c === '\0' ? 'a NUL byte' : JSON.stringify(c);
}
