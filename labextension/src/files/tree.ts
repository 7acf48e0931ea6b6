/** The files of a job as a tree, and which rows of it are visible (pure functions). */

import type { RunFile } from '../model/record';

/** A folder, or a file if `file` is set. */
export interface Branch {
  readonly name: string;
  /** The whole path, without a trailing slash; with the node if several nodes have a file of that path. */
  readonly key: string;
  readonly file: RunFile | null;
  readonly branches: readonly Branch[];
}

/** A row of the tree: a branch, how deep it lies (from 1), and its place among its siblings (from 1). */
export interface TreeRow {
  readonly branch: Branch;
  readonly level: number;
  readonly position: number;
  readonly size: number;
  readonly open: boolean;
  /** The row of the folder that contains it; -1 at the top. */
  readonly parent: number;
}

interface Folder {
  readonly folders: Map<string, Folder>;
  readonly files: RunFile[];
}

const names = new Intl.Collator(undefined, { numeric: true }); // "step-9" before "step-10"

/** Files grouped by folder: folders first, both sorted by name. */
export function treeOf(files: readonly RunFile[]): readonly Branch[] {
  const root: Folder = { folders: new Map(), files: [] };
  const several = new Set<string>();
  const seen = new Set<string>();
  for (const file of files) {
    (seen.has(file.path) ? several : seen).add(file.path);
    const parts = file.path.split('/').slice(0, -1);
    const folder = parts.reduce((at, name) => {
      const below: Folder = at.folders.get(name) ?? { folders: new Map(), files: [] };
      at.folders.set(name, below);
      return below;
    }, root);
    folder.files.push(file);
  }
  return branchesOf(root, '', several);
}

function branchesOf(
  { folders, files }: Folder,
  above: string,
  several: ReadonlySet<string>
): readonly Branch[] {
  const below = [...folders].map(([name, folder]) => {
    const key = above + name;
    return { name, key, file: null, branches: branchesOf(folder, `${key}/`, several) };
  });
  const leaves = files.map(file => ({
    name: file.path.slice(above.length),
    key: several.has(file.path) ? `${file.path}\n${file.node}` : file.path,
    file,
    branches: []
  }));
  const byName = (a: Branch, b: Branch) =>
    names.compare(a.name, b.name) || (a.file?.node ?? 0) - (b.file?.node ?? 0);
  return [...below.sort(byName), ...leaves.sort(byName)];
}

/** Whether other nodes have a file of the same path. */
export function isOneOfSeveral({ key }: Branch): boolean {
  return key.includes('\n');
}

/** The visible rows: all except those inside `closed` folders. */
export function rowsOf(
  branches: readonly Branch[],
  closed: ReadonlySet<string>
): readonly TreeRow[] {
  const rows: TreeRow[] = [];
  const add = (siblings: readonly Branch[], level: number, parent: number) =>
    siblings.forEach((branch, index) => {
      const open = branch.file === null && !closed.has(branch.key);
      rows.push({ branch, level, position: index + 1, size: siblings.length, open, parent });
      if (open) {
        add(branch.branches, level + 1, rows.length - 1);
      }
    });
  add(branches, 1, -1);
  return rows;
}

/** What a key does in a tree, as the ARIA pattern defines it: go to a row, toggle a folder, or open a file. */
export function keyed(
  key: string,
  rows: readonly TreeRow[],
  at: number
): { readonly to: number } | 'toggle' | 'open' | null {
  const row = rows[at];
  if (!row) {
    return null;
  }
  const folder = row.branch.file === null;
  switch (key) {
    case 'ArrowDown':
      return { to: Math.min(at + 1, rows.length - 1) };
    case 'ArrowUp':
      return { to: Math.max(at - 1, 0) };
    case 'Home':
      return { to: 0 };
    case 'End':
      return { to: rows.length - 1 };
    case 'ArrowRight':
      return !folder ? null : row.open ? { to: Math.min(at + 1, rows.length - 1) } : 'toggle';
    case 'ArrowLeft':
      return row.open ? 'toggle' : row.parent < 0 ? null : { to: row.parent };
    case 'Enter':
    case ' ':
      return folder ? 'toggle' : 'open';
    default:
      return null;
  }
}
