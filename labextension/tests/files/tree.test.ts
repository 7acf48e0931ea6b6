import { describe, expect, it } from 'vitest';

import { keyed, rowsOf, treeOf } from '../../src/files/tree';

const file = (path: string, node = 0) => ({ path, node, size: 10, modified: 0 });
const FILES = [
  file('artifacts/loss.csv'),
  file('artifacts/loss.csv', 1),
  file('artifacts/runs/step-10.pt'),
  file('artifacts/runs/step-9.pt'),
  file('checkpoints/last.pt')
];
const names = (closed: string[] = []) =>
  rowsOf(treeOf(FILES), new Set(closed)).map(({ branch, level }) => `${level} ${branch.name}`);

describe('the tree of files', () => {
  it('has folders first, each by name, and numbers in their order', () => {
    expect(names()).toEqual([
      '1 artifacts',
      '2 runs',
      '3 step-9.pt',
      '3 step-10.pt',
      '2 loss.csv',
      '2 loss.csv',
      '1 checkpoints',
      '2 last.pt'
    ]);
    expect(names(['artifacts'])).toEqual(['1 artifacts', '1 checkpoints', '2 last.pt']);
  });

  it('tells files of several nodes apart', () => {
    const [artifacts] = treeOf(FILES);
    expect(artifacts?.branches.slice(1).map(({ key }) => key)).toEqual([
      'artifacts/loss.csv\n0',
      'artifacts/loss.csv\n1'
    ]);
  });

  it('is led by the keys of a tree', () => {
    const rows = rowsOf(treeOf(FILES), new Set(['checkpoints']));
    const last = rows.length - 1;

    expect(keyed('ArrowDown', rows, 0)).toEqual({ to: 1 });
    expect(keyed('ArrowUp', rows, 0)).toEqual({ to: 0 });
    expect(keyed('End', rows, 0)).toEqual({ to: last });
    expect(keyed('Home', rows, last)).toEqual({ to: 0 });
    expect(keyed('ArrowRight', rows, 0)).toEqual({ to: 1 });
    expect(keyed('ArrowRight', rows, last)).toBe('toggle');
    expect(keyed('ArrowLeft', rows, 0)).toBe('toggle');
    expect(keyed('ArrowLeft', rows, 2)).toEqual({ to: 1 });
    expect(keyed('ArrowLeft', rows, last)).toBeNull();
    expect(keyed('Enter', rows, 2)).toBe('open');
    expect(keyed(' ', rows, 0)).toBe('toggle');
    expect(keyed('x', rows, 0)).toBeNull();
    expect(keyed('Enter', [], 0)).toBeNull();
  });
});
