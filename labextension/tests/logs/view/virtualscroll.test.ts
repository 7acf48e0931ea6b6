import { describe, expect, it } from 'vitest';

import { VirtualScroll } from '../../../src/logs/view/virtualscroll';

function windowOf(rows: number): VirtualScroll {
  const window = new VirtualScroll();
  return Object.assign(window, { rows, rowHeight: 20, viewHeight: 200 });
}

describe('a window', () => {
  it('over few rows has no scroll bar', () => {
    const window = windowOf(3);
    expect([window.height, window.range, window.first]).toEqual([200, 0, 0]);
  });

  it('shows the rows at its place', () => {
    const window = windowOf(1000);
    window.moveTo(50);
    expect([window.first, window.hidden, window.count, window.scrollTop]).toEqual([2, 0.5, 11, 50]);
    expect(window.height).toBe(20_000);
  });

  it('stays within the rows', () => {
    const window = windowOf(1000);
    window.moveTo(Infinity);
    expect(window.top).toBe(19_800);
    window.moveTo(-1);
    expect(window.top).toBe(0);
    window.moveTo(Infinity);
    window.rows = 10;
    expect(window.top).toBe(0);
  });

  it('over very many rows is no higher than a browser can draw, and reaches each', () => {
    const window = windowOf(100_000_000);
    expect([window.scaled, window.height]).toEqual([true, 15_000_200]);
    window.moveTo(Infinity);
    expect(window.scrollTop).toBeCloseTo(15e6);
    expect(window.first).toBe(99_999_990);
    window.scrolled(7_499_999.9);
    expect(window.first).toBe(49_999_994);
  });

  it('keeps an exact place that the scroll bar can only say about', () => {
    const window = windowOf(100_000_000);
    window.moveTo(1_234_567);
    window.scrolled(Math.round(window.scrollTop));
    expect(window.top).toBe(1_234_567);
  });

  it('brings a row into view, and leaves it where it is seen', () => {
    const window = windowOf(1000);
    window.reveal(5);
    expect(window.top).toBe(0);
    window.reveal(500);
    expect(window.first).toBe(496);
  });

  it('over rows that may be higher can bring the last one to the top', () => {
    const window = windowOf(1000);
    window.wrap = true;
    window.moveTo(Infinity);
    expect(window.first).toBe(999);
  });
});
