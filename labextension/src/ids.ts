/** The names that others know us by: settings, menus, notebooks' outputs, saved layouts. */

import { COMMANDS } from './commands/table';

export const PluginIDs = {
  /** It has the settings of all: JupyterLab keeps a user's by this id (`schema/plugin.json`). */
  jobs: 'nbtorchjob:plugin',
  sidebar: 'nbtorchjob:sidebar',
  notebook: 'nbtorchjob:notebook',
  status: 'nbtorchjob:status'
} as const;

export const CommandIDs = {
  runCell: 'nbtorchjob:run-cell',
  openPanel: 'nbtorchjob:open-panel',
  insertLine: 'nbtorchjob:insert-line',
  showJobs: 'nbtorchjob:show-jobs',
  compare: 'nbtorchjob:compare',
  ...COMMANDS,
  openLine: 'nbtorchjob:open-line',
  openFile: 'nbtorchjob:open-file',
  downloadLogs: 'nbtorchjob:download-logs',
  downloadArtifacts: 'nbtorchjob:download-artifacts',
  copyManifest: 'nbtorchjob:copy-manifest',
  goToCell: 'nbtorchjob:go-to-cell'
} as const;

/** What is done to all runs of a group, by the verbs that do it to a job. */
export const RunsCommandIDs = {
  attach: 'nbtorchjob:attach-runs',
  cancel: 'nbtorchjob:cancel-runs',
  retry: 'nbtorchjob:retry-runs',
  delete: 'nbtorchjob:delete-runs'
} as const;
