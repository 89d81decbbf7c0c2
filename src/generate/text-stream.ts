import type { Codec } from '../calibrate/tokenizer.js';

/** Tokens of the prompt that are decoded with the text: enough for a decoder to see whether a word goes on. */
const BEFORE = 8;

/** What tokens of a sequence add to its text. */
export interface Added {
  /** Text that is settled now. */
  readonly text: string;
  /** The stop string that ended it; it is no part of the text. */
  readonly stop?: string;
}

/**
 * The text of generated tokens, piece by piece. What may still change is held back: the bytes of a character that is not whole, and
 * the beginning of a stop string.
 */
export class TextStream {
  private readonly generated: number[] = [];
  /** What the tokens so far decode to. */
  private whole = '';
  private told = 0;

  private constructor(
    private readonly codec: Codec,
    private readonly before: readonly number[],
    /** What those decode to. */
    private readonly prefix: string,
    private readonly stops: readonly string[],
  ) {}

  /** This and push() throw what decoding throws. */
  static async open(codec: Codec, prompt: Int32Array, stops: readonly string[]): Promise<TextStream> {
    const before = [...prompt.subarray(Math.max(0, prompt.length - BEFORE))];
    return new TextStream(codec, before, await codec.decode(before), stops);
  }

  /** Everything settled so far. */
  get text(): string {
    return this.whole.slice(0, this.told);
  }

  /** One token at a time: the next one after this has settled. */
  async push(id: number): Promise<Added> {
    this.generated.push(id);
    const whole = await this.decode();
    this.whole = whole;
    const stop = this.stopIn(whole);
    if (stop) {
      const text = whole.slice(this.told, Math.max(this.told, stop.at));
      this.told = Math.max(this.told, stop.at);
      return { text, stop: stop.string };
    }
    return this.settle(whole, this.settled(whole));
  }

  /** What was held back, once no token comes any more. */
  end(): string {
    return this.settle(this.whole, this.whole.length).text;
  }

  private settle(whole: string, to: number): Added {
    const text = whole.slice(this.told, to);
    this.told = Math.max(this.told, to);
    return { text };
  }

  private async decode(): Promise<string> {
    const all = await this.codec.decode([...this.before, ...this.generated]);
    // A prompt that ends within a character: what its tokens alone were decoded to is not how the text begins.
    return all.startsWith(this.prefix) ? all.slice(this.prefix.length) : this.codec.decode(this.generated);
  }

  /** The first stop string in the text, if there is one. */
  private stopIn(whole: string): { readonly at: number; readonly string: string } | undefined {
    const found = this.stops
      .map((string) => ({ string, at: whole.indexOf(string) }))
      .filter(({ at }) => at >= 0)
      .sort((a, b) => a.at - b.at);
    return found[0];
  }

  /** Characters of `whole` that no further token changes. */
  private settled(whole: string): number {
    let end = whole.length;
    while (end > 0 && whole[end - 1] === '\ufffd') end--;
    for (const stop of this.stops)
      for (let length = Math.min(stop.length - 1, end); length > 0; length--)
        if (whole.slice(0, end).endsWith(stop.slice(0, length))) {
          end -= length;
          break;
        }
    return Math.max(end, this.told);
  }
}
