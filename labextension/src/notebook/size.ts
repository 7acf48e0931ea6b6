/** How many nodes and ranks a cell without a line of its own gets, as options (pure). */

/** As typed: "2", "1:4", "auto"; "": the default. */
export interface Size {
  readonly nodes: string;
  readonly ranks: string;
}

const NODES = /(?:^|\s)--nnodes(?:=|\s+)(\S+)/;
const RANKS = /(?:^|\s)--nproc[-_]per[-_]node(?:=|\s+)(\S+)/;

/** The size in a line's options; of a repeated option, the last one counts. */
export function sizeOf(options: string): Size {
  const last = (flag: RegExp) => [...options.matchAll(new RegExp(flag, 'g'))].pop()?.[1] ?? '';
  return { nodes: last(NODES), ranks: last(RANKS) };
}

/** The options with this size in place of their own. */
export function withSize(options: string, { nodes, ranks }: Size): string {
  const rest = [NODES, RANKS].reduce(
    (left, flag) => left.replace(new RegExp(flag, 'g'), ''),
    options
  );
  const parts = [nodes && `--nnodes ${nodes}`, ranks && `--nproc-per-node ${ranks}`, rest.trim()];
  return parts.filter(Boolean).join(' ');
}
