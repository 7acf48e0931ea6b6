/** One timer for all that shows how long something has taken; it runs while anyone looks. */
export class Clock {
  /** Calls `listener` about once a second; gives what ends it. */
  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    this.timer ??= setInterval(() => this.listeners.forEach(each => each()), 1000);
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
