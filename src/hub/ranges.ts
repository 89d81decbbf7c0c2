import { LpqError } from '../core/error.js';
import type { Answer, HubClient } from './client.js';
import { cutOff, header, place, refusal } from './failures.js';
import type { HubFile } from './listing.js';
import type { ModelName } from './name.js';

/** Reads parts of one file of the Hub, without its digest: who takes the whole file later compares them with it. */
export class RangeReader {
  /** Where the file was found at last: small parts need not ask the Hub each. */
  private found: string | undefined;

  constructor(
    private readonly client: HubClient,
    private readonly model: ModelName,
    private readonly file: HubFile,
    private readonly url: string,
  ) {}

  /** `length` bytes from `at`. Throws LPQ_HUB_* as the client and the server give cause, LPQ_ABORTED. */
  read(at: number, length: number): Promise<Buffer> {
    return this.client.persist(async () => {
      try {
        return await this.part(this.found ?? this.url, at, length);
      } catch (error) {
        // Signed addresses expire.
        if (this.found === undefined || this.found === this.url || this.client.signal.aborted) throw error;
        this.found = undefined;
        return await this.part(this.url, at, length);
      }
    });
  }

  private async part(url: string, at: number, length: number): Promise<Buffer> {
    const answer = await this.client.send(url, this.what, () => ({ range: `bytes=${at}-${at + length - 1}` }));
    try {
      this.check(answer, at, length);
      const bytes = await this.body(answer, length);
      this.found = answer.url;
      return bytes;
    } finally {
      answer.body.destroy();
    }
  }

  private get what(): string {
    return `a part of ${this.file.path} of ${this.model.id}`;
  }

  private check({ status, headers, url }: Answer, at: number, length: number): void {
    if (status !== 200 && status !== 206)
      throw refusal(status, headers, url, { ...this.model, what: this.what, hasToken: this.client.hasToken });
    const range = header(headers, 'content-range') ?? '';
    if (status === 206 && range === `bytes ${at}-${at + length - 1}/${this.file.size}`) return;
    throw new LpqError('LPQ_HUB_RESPONSE', `${place(url)} does not give ${this.what}`, {
      got: status === 200 ? 'all of it' : range || 'no Content-Range',
      expected: `bytes ${at}-${at + length - 1}/${this.file.size}`,
      hint: 'Run the command without --stream, which needs no parts; check HF_ENDPOINT and the proxy.',
    });
  }

  private async body(answer: Answer, length: number): Promise<Buffer> {
    const pieces: Buffer[] = [];
    let got = 0;
    try {
      for await (const piece of answer.body as AsyncIterable<Buffer>) {
        pieces.push(piece);
        got += piece.length;
        if (got > length) break;
      }
    } catch (cause) {
      throw this.client.failure(cause, answer.url, this.what);
    }
    if (got !== length) throw cutOff(this.what, `${got} of ${length} bytes, from ${place(answer.url)}`);
    return Buffer.concat(pieces);
  }
}
