import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { WriteBehind } from '../../../src/quantize/write-behind.js';

/** Writes that end when told to. */
function gates() {
  const log: string[] = [];
  const ends = new Map<string, (error?: Error) => void>();
  const piece = (name: string) => ({
    write: () =>
      new Promise<void>((resolve, reject) => {
        log.push(`begin ${name}`);
        ends.set(name, (error) => (error ? reject(error) : resolve()));
      }),
    release: () => log.push(`release ${name}`),
  });
  return { log, end: (name: string, error?: Error) => ends.get(name)?.(error), piece };
}

/** Whether a promise has settled after all that could run has run. */
async function settled(promise: Promise<unknown>): Promise<boolean> {
  let done = false;
  const note = () => {
    done = true;
  };
  promise.then(note, note);
  for (let i = 0; i < 10; i++) await turn();
  return done;
}

test('writes run one after another, and the caller waits only above the limit', async () => {
  const { log, end, piece } = gates();
  const behind = new WriteBehind(100);
  const add = (name: string, bytes: number) => {
    const { write, release } = piece(name);
    return behind.add(bytes, write, release);
  };
  await add('a', 60);
  await add('b', 40);
  const third = add('c', 30);
  assert.equal(await settled(third), false);
  assert.deepEqual(log, ['begin a']);
  end('a');
  await third;
  await settled(third); // a write begins a turn later
  assert.deepEqual(log.slice(0, 3), ['begin a', 'release a', 'begin b']);
  const huge = add('d', 1000);
  end('b');
  assert.equal(await settled(huge), false);
  end('c');
  await huge;
  const all = behind.settle();
  assert.equal(await settled(all), false);
  end('d');
  await all;
  const names = ['a', 'b', 'c', 'd'];
  assert.deepEqual(
    log,
    names.flatMap((name) => [`begin ${name}`, `release ${name}`]),
  );
});

test('a failure meets the next caller; what was queued is dropped and released', async () => {
  const { log, end, piece } = gates();
  const behind = new WriteBehind();
  for (const name of ['a', 'b']) await behind.add(1, piece(name).write, piece(name).release);
  await settled(Promise.resolve());
  end('a', new Error('no room'));
  await assert.rejects(behind.settle(), /no room/);
  await assert.rejects(behind.add(1, piece('c').write, piece('c').release), /no room/);
  assert.deepEqual(log, ['begin a', 'release a', 'release b', 'release c']);
});

test('abandoning waits for what has begun and drops the rest', async () => {
  const { log, end, piece } = gates();
  const behind = new WriteBehind();
  for (const name of ['a', 'b']) await behind.add(1, piece(name).write, piece(name).release);
  await settled(Promise.resolve());
  const gone = behind.abandon();
  assert.equal(await settled(gone), false);
  end('a');
  await gone;
  assert.deepEqual(log, ['begin a', 'release a', 'release b']);
});
