/** How far a list is scrolled and how much of it is seen. */

import { type RefObject, useLayoutEffect, useRef, useState } from 'react';

import { type Layout, anchored } from './layout';

export interface Viewport {
  readonly scrollTop: number;
  readonly height: number;
}

/** Follows an element's scrolling and size; the height is 0 while it is hidden. */
export function useViewport(ref: RefObject<HTMLElement>): Viewport {
  const [viewport, setViewport] = useState<Viewport>({ scrollTop: 0, height: 0 });
  useLayoutEffect(() => {
    const element = ref.current;
    if (!element) {
      return;
    }
    const measure = () =>
      setViewport({ scrollTop: element.scrollTop, height: element.clientHeight });
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    element.addEventListener('scroll', measure, { passive: true });
    measure();
    return () => {
      observer.disconnect();
      element.removeEventListener('scroll', measure);
    };
  }, [ref]);
  return viewport;
}

/** Keeps the visible part of a list in place when rows above it come and go. */
export function useAnchor(ref: RefObject<HTMLElement>, layout: Layout): void {
  const before = useRef(layout);
  useLayoutEffect(() => {
    if (ref.current && before.current !== layout) {
      ref.current.scrollTop = anchored(before.current, layout, ref.current.scrollTop);
      before.current = layout;
    }
  }, [ref, layout]);
}
