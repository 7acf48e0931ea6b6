import { describe, expect, it } from 'vitest';

import {
  asJob,
  attachLine,
  canBeJob,
  isJobLine,
  magicOf,
  placeOfLine,
  withLine
} from '../../src/notebook/cells';

describe('the magic of a cell', () => {
  it.each([
    ['', null],
    ['x = 1', null],
    ['%time f()', null],
    ['%%torchjob', 'torchjob'],
    ['%%torchjob --nodes 2\nx', 'torchjob'],
    ['\n  \n%%bash\nls', 'bash'],
    ['# what it does\n%%torchjob\nx', 'torchjob'],
    ['%%torchjobs\nx', 'torchjobs'],
    ['x = """\n%%bash\n"""', null]
  ])('of %j is %j', (source, magic) => {
    expect(magicOf(source)).toBe(magic);
  });
});

describe('a cell can be a job', () => {
  it.each(['', 'train()', '%%torchjob\nx', '%matplotlib inline\nplot()', '%torchjobs'])(
    '%j',
    source => {
      expect(canBeJob(source)).toBe(true);
    }
  );

  it.each(['%%bash\nls', '%torchjob config', '  %torchjob attach a', '%%torchjob-like\nx'])(
    'but not %j',
    source => {
      expect(canBeJob(source)).toBe(false);
    }
  );
});

describe('a line on top of a cell', () => {
  const line = '%%torchjob --nodes 2';

  it.each([
    ['', `${line}\n`],
    ['x = 1', `${line}\nx = 1`],
    ['\n\n  x = 1', `${line}\n  x = 1`],
    ['# why\nx', `${line}\n# why\nx`],
    ['%%torchjob', `${line}\n`],
    ['%%torchjob -d\nx', `${line}\nx`],
    ['\n%%torchjob -d\n\nx', `${line}\nx`],
    ['# why\n%%torchjob -d\nx', `${line}\n# why\nx`],
    ['%%torchjob --nodes 4 \\\n  --detach\nx', `${line}\nx`],
    ['%%torchjobs\nx', `${line}\n%%torchjobs\nx`],
    ['%%torchjob -d\r\nx\r\n', `${line}\nx\r\n`]
  ])('of %j', (source, made) => {
    expect(withLine(source, line)).toBe(made);
  });

  it('stays one line however often it is put there', () => {
    const once = withLine('x', line);

    expect(withLine(once, line)).toBe(once);
  });
});

describe('a cell as a job', () => {
  it.each([
    ['x', '', '%%torchjob\nx'],
    ['x', ' --nodes 2 ', '%%torchjob --nodes 2\nx'],
    ['%%torchjob -d\nx', '--nodes 2', '%%torchjob -d\nx'],
    ['# why\n%%torchjob -d\nx', '--nodes 2', '%%torchjob -d\n# why\nx'],
    ['%%torchjob', '--nodes 2', '%%torchjob\n']
  ])('%j with %j', (source, options, made) => {
    expect(asJob(source, options)).toBe(made);
  });
});

describe('a line goes', () => {
  const line = '%%torchjob --nodes 2';

  it.each([
    ['on the active cell', 'x = 1', false, null, 'active'],
    ['on a new cell where the active one has a line', '%%torchjob -d\nx', false, null, 'new'],
    ['on a new cell where another magic has the active one', '%%bash\nls', false, null, 'new'],
    ['on a new cell below text', null, false, null, 'new'],
    ['from the panel on a new cell', 'panel', true, null, 'new'],
    ['from the panel on the cell that it made', 'panel', true, `# why\n${line}\ny`, 'made'],
    ['from the panel on no line that was changed', 'panel', true, `${line} -d\ny`, 'new'],
    ['from the panel on no cell that lost its line', 'panel', true, 'y', 'new']
  ] as const)('%s', (_, active, isPanel, source, place) => {
    const made = source === null ? null : { source, line };

    expect(placeOfLine({ active, isPanel, made })).toBe(place);
  });
});

describe('a line from elsewhere', () => {
  it.each(['%%torchjob', '%%torchjob --nodes 2'])('%j is taken', line => {
    expect(isJobLine(line)).toBe(true);
  });

  it.each([
    '',
    '%%bash',
    '%%torchjobs',
    '%%torchjob\nimport os',
    'x %%torchjob',
    '%%torchjob a\rb'
  ])('%j is refused', line => {
    expect(isJobLine(line)).toBe(false);
  });
});

describe('the line that attaches', () => {
  it.each([
    [{ id: 'local:brave-fox', backend: 'local' }, '%torchjob attach brave-fox'],
    [
      { id: 'kubernetes:kind/default/brave-fox', backend: 'kubernetes' },
      '%torchjob attach kind/default/brave-fox'
    ],
    [
      { id: "kubernetes:my cluster's/a/b", backend: 'kubernetes' },
      `%torchjob attach 'my cluster'"'"'s/a/b'`
    ]
  ])('names the job: %j', (job, line) => {
    expect(attachLine(job)).toBe(line);
  });
});
