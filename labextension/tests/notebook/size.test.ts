import { describe, expect, it } from 'vitest';

import { sizeOf, withSize } from '../../src/notebook/size';

describe('the size of a job', () => {
  it.each([
    ['', '', ''],
    ['--nnodes 2 --name fox', '2', ''],
    ['--name fox --nproc_per_node=auto --nnodes=1:4', '1:4', 'auto'],
    ['--nnodes 2 --nnodes 3', '3', '']
  ])('is read of %j', (options, nodes, ranks) => {
    expect(sizeOf(options)).toEqual({ nodes, ranks });
  });

  it.each([
    ['', { nodes: '', ranks: '' }, ''],
    ['', { nodes: '2', ranks: '4' }, '--nnodes 2 --nproc-per-node 4'],
    ['--nnodes=8 --name fox --nproc-per-node 1', { nodes: '2', ranks: '' }, '--nnodes 2 --name fox']
  ])('takes the place of what %j has', (options, size, line) => {
    expect(withSize(options, size)).toBe(line);
  });
});
