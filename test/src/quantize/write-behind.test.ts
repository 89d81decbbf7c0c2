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
      new Promise<undefined>((resolve, reject) => {
        log.push(`begin ${name}`);
        ends.set(name, (error) => (error ? reject(error) : resolve(undefined)));
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

test('one at a time on request: writes run one after another, and the caller waits only above the limit', async () => {
  const { log, end, piece } = gates();
  const behind = new WriteBehind(100, 1);
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
  const behind = new WriteBehind(1000, 1);
  for (const name of ['a', 'b']) await behind.add(1, piece(name).write, piece(name).release);
  await settled(Promise.resolve());
  end('a', new Error('no room'));
  await assert.rejects(behind.settle(), /no room/);
  await assert.rejects(behind.add(1, piece('c').write, piece('c').release), /no room/);
  assert.deepEqual(log, ['begin a', 'release a', 'release b', 'release c']);
});

test('abandoning waits for what has begun and drops the rest', async () => {
  const { log, end, piece } = gates();
  const behind = new WriteBehind(1000, 1);
  for (const name of ['a', 'b']) await behind.add(1, piece(name).write, piece(name).release);
  await settled(Promise.resolve());
  const gone = behind.abandon();
  assert.equal(await settled(gone), false);
  end('a');
  await gone;
  assert.deepEqual(log, ['begin a', 'release b', 'release a']);
});

test('several run at once, and tell in the order they came', async () => {
  const { log, end, piece } = gates();
  const behind = new WriteBehind(1000, 3);
  for (const name of ['a', 'b', 'c', 'd']) {
    const { write, release } = piece(name);
    const told = async () => {
      await write();
      return () => log.push(`tell ${name}`);
    };
    await behind.add(10, told, release);
  }
  await settled(Promise.resolve());
  assert.deepEqual(log, ['begin a', 'begin b', 'begin c']);
  end('c');
  await settled(Promise.resolve());
  assert.deepEqual(log.slice(3), ['release c', 'begin d']);
  end('a');
  await settled(Promise.resolve());
  assert.deepEqual(log.slice(5), ['tell a', 'release a']);
  end('d');
  end('b');
  await behind.settle();
  assert.deepEqual(
    log.filter((line) => line.startsWith('tell')),
    ['tell a', 'tell b', 'tell c', 'tell d'],
  );
});

test('a failure among several: the others end and are released, nobody behind it is told', async () => {
  const { log, end, piece } = gates();
  const behind = new WriteBehind(1000, 2);
  const told: string[] = [];
  for (const name of ['a', 'b', 'c']) {
    const { write, release } = piece(name);
    const all = async () => {
      await write();
      return () => told.push(name);
    };
    await behind.add(10, all, release);
  }
  await settled(Promise.resolve());
  end('a', new Error('no room'));
  const rest = behind.settle();
  assert.equal(await settled(rest), false);
  end('b');
  await assert.rejects(rest, /no room/);
  assert.deepEqual(told, []);
  assert.deepEqual(log.filter((line) => line.startsWith('release')).sort(), ['release a', 'release b', 'release c']);
  assert.ok(!log.includes('begin c'));
});

test('what a teller throws is a failure like any other', async () => {
  const behind = new WriteBehind();
  const stop = async () => () => {
    throw new Error('interrupted');
  };
  await behind.add(1, stop, () => {});
  await assert.rejects(behind.settle(), /interrupted/);
});
