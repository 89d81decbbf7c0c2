import assert from 'node:assert/strict';
import { test } from 'node:test';
import { groupCount, groupSizeOf, printGranularity } from '../../../src/core/granularity.js';

test('a channel is one group of K weights', () => {
  const channel = { kind: 'channel' } as const;
  assert.deepEqual(
    [groupSizeOf(channel, 384), groupCount(channel, 384), printGranularity(channel)],
    [384, 1, 'channel'],
  );
});

test('groups of 128', () => {
  const group = { kind: 'group', size: 128 } as const;
  assert.deepEqual([groupSizeOf(group, 384), groupCount(group, 384), printGranularity(group)], [128, 3, '128']);
});
