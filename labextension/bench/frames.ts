/** How long a page takes, frame by frame. */

export function frame(): Promise<number> {
  return new Promise(resolve => requestAnimationFrame(resolve));
}

let failed: unknown; // what was thrown, and by nobody caught: what is waited for may then never come
addEventListener('error', event => (failed ??= event.error as unknown));
addEventListener('unhandledrejection', event => (failed ??= event.reason as unknown));

/** Waits, frame by frame, and gives how many milliseconds the longest frame took until what it brought was drawn. */
export async function until(condition: () => boolean): Promise<number> {
  let [last, longest] = [await frame(), 0];
  for (let drawn = false; !drawn;) {
    if (failed) {
      throw failed as Error;
    }
    drawn = condition();
    const now = await frame();
    longest = Math.max(longest, now - last);
    last = now;
  }
  return longest;
}

/** Scrolls by a page a frame from the end, then to random places; gives each frame's milliseconds. */
export async function scroll(selector: string): Promise<number[]> {
  const element = document.querySelector(selector);
  const taken: number[] = [];
  if (element) {
    element.scrollTop = element.scrollHeight;
    for (let turn = 0; turn < 200; turn++) {
      const start = await frame();
      const far = element.scrollHeight * ((turn * 0.618) % 1);
      element.scrollTop = turn < 100 ? element.scrollTop - 800 : far;
      taken.push((await frame()) - start);
    }
  }
  return taken;
}
