/**
 * Whole numbers in a typed array that doubles when it is full: 1 or 4 bytes each, or 8 for times,
 * whereas an object would take 50. A million lines need a few million of them.
 */
export class Packed {
  private data: Uint8Array | Uint32Array | Float64Array;
  private used = 0;

  constructor(private readonly bytes: 1 | 4 | 8) {
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
    return index < this.used ? (this.data[index] ?? 0) : 0;
  }

  /** The index of the last number that isn't above `value`, if the numbers ascend; -1: all are above. */
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

  /** Keeps only the first `length` numbers. */
  cut(length: number): void {
    this.used = Math.min(this.used, length);
  }

  private make(length: number): Uint8Array | Uint32Array | Float64Array {
    if (this.bytes === 8) {
      return new Float64Array(length);
    }
    return this.bytes === 1 ? new Uint8Array(length) : new Uint32Array(length);
  }
}
