/**
 * Whole numbers in a typed array that doubles when it is full: 1 or 4 bytes each, where an object
 * would take 50. A million lines have a few million of them.
 */
export class Packed {
  private data: Uint8Array | Uint32Array;
  private used = 0;

  constructor(private readonly bytes: 1 | 4) {
    this.data = this.make(256);
  }

  get length(): number {
    return this.used;
  }

  push(value: number): void {
    if (this.used === this.data.length) {
      const grown = this.make(this.used * 2);
      grown.set(this.data);
      this.data = grown;
    }
    this.data[this.used++] = value;
  }

  at(index: number): number {
    return this.data[index] ?? 0;
  }

  /** The place of the last number that isn't above `value`, in ascending numbers; -1: all are. */
  floor(value: number): number {
    let [low, high] = [0, this.used];
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (this.at(middle) <= value) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low - 1;
  }

  private make(length: number): Uint8Array | Uint32Array {
    return this.bytes === 1 ? new Uint8Array(length) : new Uint32Array(length);
  }
}
