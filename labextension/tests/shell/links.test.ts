import { expect, it } from 'vitest';

import { LINKED, linked, linkTo, place, unlinked } from '../../src/shell/links';

it('links to a line of a job’s log, and reads that again', () => {
  const link = linkTo('http://a/lab/tree/x.ipynb?token=t#h', 'local:a b', { rank: 1, line: 12 });
  const { origin, pathname, search, hash } = new URL(link);
  expect([origin + pathname, hash]).toEqual(['http://a/lab/tree/x.ipynb', '']);
  expect(LINKED.test(link)).toBe(true);
  expect(linked(search)).toEqual({ id: 'local:a b', rank: 1, line: 12 });
  expect(unlinked(`${search}&reset`)).toBe('?reset=');
  expect(unlinked(search)).toBe('');
});

it('takes nothing else for a link', () => {
  expect(LINKED.test('/lab?reset')).toBe(false);
  expect([linked('?nbtorchjob-logs=local:a'), place('local:a', '1'), place('', '0.1')]).toEqual([
    null,
    null,
    null
  ]);
});
