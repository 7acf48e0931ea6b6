import { describe, expect, it } from 'vitest';

import { ending, quick } from '../../src/commands/verbs';

import { aJob } from '../jobs';

describe('actions', () => {
  it('cancel what runs and delete what has ended', () => {
    const done = aJob({ phase: 'SUCCEEDED' });

    expect([ending(aJob()), ending(done)]).toEqual(['cancel', 'delete']);
    expect(quick(aJob())).toContain('cancel');
    expect(quick(done)).not.toContain('cancel');
  });
});
