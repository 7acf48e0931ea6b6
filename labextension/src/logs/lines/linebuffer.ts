import { Packed } from './packed';

const BLOCK = 1 << 18;

/**
 * The lines of a log, in blocks of text with an index of where each line begins: 4 bytes per line
 * in addition to its characters, which take one byte each if the block is Latin-1.
 */
export class LineBuffer {
  private readonly blocks: string[] = [];
  /** The first line of each block. */
  private readonly firsts = new Packed(4);
  /** Where each line begins in its block. */
  private readonly starts = new Packed(4);
  private shedBlocks = 0;
  private charCount = 0;

  /** How many lines there are. */
  get length(): number {
    return this.starts.length;
  }

  /** How many characters are held in memory. */
  get size(): number {
    return this.charCount;
  }

  /** Adds whole lines, each with its newline. */
  push(lines: string): void {
    const block = this.room();
    const before = this.blocks[block] ?? '';
    for (let from = 0, end: number; (end = lines.indexOf('\n', from)) >= 0; from = end + 1) {
      this.starts.push(before.length + from);
    }
    this.blocks[block] = before + lines;
    this.charCount += lines.length;
  }

  /** A line without its newline; null if it was shed. */
  line(index: number): string | null {
    const block = this.firsts.floor(index);
    if (block < this.shedBlocks) {
      return null;
    }
    const text = this.blocks[block] ?? '';
    const next = index + 1;
    const last = next === this.length || next === this.firsts.at(block + 1);
    const end = last ? text.length : this.starts.at(next);
    return text.slice(this.starts.at(index), end - 1);
  }

  /** Drops the text of the oldest block, but never of the newest: a browser tab has about 4 GB. */
  shed(): void {
    if (this.shedBlocks < this.blocks.length - 1) {
      this.charCount -= this.blocks[this.shedBlocks]?.length ?? 0;
      this.blocks[this.shedBlocks++] = '';
    }
  }

  /** The block that takes new lines. */
  private room(): number {
    const last = this.blocks.length - 1;
    if (last >= 0 && (this.blocks[last] ?? '').length < BLOCK) {
      return last;
    }
    this.firsts.push(this.length);
    return this.blocks.push('') - 1;
  }
}
