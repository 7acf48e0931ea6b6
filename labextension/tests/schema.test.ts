import { expect, it } from 'vitest';

import schema from '../schema/plugin.json';
import { CommandIDs } from '../src/ids';

it('menus, toolbars and shortcuts name commands that there are', () => {
  const named = [...JSON.stringify(schema).matchAll(/"command":"([^"]+)"/g)].map(found => found[1]);

  expect(named.length).toBeGreaterThan(3);
  expect(Object.values(CommandIDs)).toEqual(expect.arrayContaining(named));
});
