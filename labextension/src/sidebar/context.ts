/** What the sidebar's components need from the page around them. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { type ReactNode, createContext, useContext } from 'react';

import type { Verb } from '../commands/verbs';
import type { Meant } from '../model/client';
import type { Files, Job, RunFile } from '../model/record';
import type { Listed } from '../model/runs';

import type { Clock } from './clock';

export interface Page {
  readonly trans: TranslationBundle;
  readonly clock: Clock;
  /** Seconds since the job was submitted, now or at its end. */
  elapsed(job: Job): number;
  can(verb: Verb, listed: Listed): boolean;
  run(verb: Verb, listed: Listed): void;
  /** The verb as a button's label. */
  label(verb: Verb, listed: Listed): string;
  icon(name: IconName): ReactNode;
  /** Opens the menu of a job, or of a group's runs, at a point of the window. */
  menu(listed: Listed, x: number, y: number): void;
  /** Whether this page has the command, which needs notebooks. */
  offers(command: NotebookCommand): boolean;
  start(command: NotebookCommand): void;
  refresh(): void;
  /** Whether these jobs can be compared, and that many at once. */
  comparable(jobs: readonly Job[]): boolean;
  compare(jobs: readonly Job[]): void;
  /** The files that a job's ranks have written; rejects with an Error, one line for the user. */
  files(job: Meant): Promise<Files>;
  /** Opens one of these files in a tab. */
  openFile(job: Job, file: RunFile): void;
  /** Deletes these jobs once the user has confirmed it. */
  deleteAll(jobs: readonly Job[]): void;
}

export type NotebookCommand = 'runCell' | 'openPanel';

export type IconName =
  | Verb
  | 'clear'
  | 'closed'
  | 'deleteEnded'
  | 'menu'
  | 'notebook'
  | 'open'
  | 'openPanel'
  | 'refresh'
  | 'select';

const Surroundings = createContext<Page | null>(null);

export const PageProvider = Surroundings.Provider;

export function usePage(): Page {
  const page = useContext(Surroundings);
  if (!page) {
    throw new Error('a component of the sidebar stands outside of PageProvider');
  }
  return page;
}
