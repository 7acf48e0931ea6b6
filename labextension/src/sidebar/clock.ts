/** One timer for everything that shows a duration; it runs while it has subscribers. */
export class Clock {
  /** Calls `listener` about once a second; returns a function that ends this. */
  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    this.timer ??= setInterval(() => this.listeners.forEach(notify => notify()), 1000);
    return () => {
      this.listeners.delete(listener);
      if (this.listeners.size === 0) {
        clearInterval(this.timer);
        this.timer = undefined;
      }
    };
  };

  private readonly listeners = new Set<() => void>();
  private timer: ReturnType<typeof setInterval> | undefined;
}
